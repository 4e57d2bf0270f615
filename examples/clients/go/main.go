// Three messages through RocketMQ's own Go client.
//
//	go run . 127.0.0.1:8081 greetings
//
// The endpoint is the gRPC address of any node. This client speaks TLS and checks no certificate;
// EnableSsl = false makes it speak plain text.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	count     = 3
	invisible = 30 * time.Second // the time in which a message is acknowledged, or it comes again
	noMessage = 40401            // an error for this client
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(endpoint, topic string) error {
	config := &rmq.Config{Endpoint: endpoint, ConsumerGroup: "go-readers", Credentials: &credentials.SessionCredentials{}}
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	if err != nil {
		return err
	}
	wanted := map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}
	consumer, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(5*time.Second), rmq.WithSimpleSubscriptionExpressions(wanted))
	if err != nil {
		return err
	}
	if err := errors.Join(producer.Start(), consumer.Start()); err != nil {
		return err
	}
	ctx := context.Background()
	for number := range count {
		message := &rmq.Message{Topic: topic, Body: fmt.Appendf(nil, "hello %d", number)}
		message.SetTag("polite")
		receipts, err := producer.Send(ctx, message)
		if err != nil {
			return err
		}
		fmt.Println("sent", receipts[0].MessageID)
	}
	for received := 0; received < count; {
		messages, err := consumer.Receive(ctx, count, invisible)
		var status *rmq.ErrRpcStatus
		if err != nil && !(errors.As(err, &status) && status.Code == noMessage) {
			return err
		}
		for _, message := range messages {
			fmt.Println("received", string(message.GetBody()))
			if err := consumer.Ack(ctx, message); err != nil {
				return err
			}
			received++
		}
	}
	return errors.Join(consumer.GracefulStop(), producer.GracefulStop())
}
