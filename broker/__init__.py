"""The broker: one single writer, six watermarks, and a module per service that advances
or waits for one.
"""
