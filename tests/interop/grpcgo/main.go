// RocketMQ's Go client of version 5, told by lines; see interop_grpc.py for them. Arguments: the endpoint,
// tls or plain, the namespace or "", and a directory for its log.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type closer interface{ GracefulStop() error }

var (
	endpoint, namespace string
	producer            rmq.Producer
	simple              = map[string]rmq.SimpleConsumer{}
	running             = map[string]closer{}
	views               = map[string]*rmq.MessageView{}
	lock                sync.Mutex
	seen                = map[string][]string{}
)

func configuration(group string) *rmq.Config {
	return &rmq.Config{Endpoint: endpoint, NameSpace: namespace, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{
		AccessKey: os.Getenv("SATURNMQ_ACCESS_KEY"), AccessSecret: os.Getenv("SATURNMQ_SECRET_KEY"),
	}}
}

func orNothing(text *string) string {
	if text == nil || *text == "" {
		return "-"
	}
	return *text
}

func described(view *rmq.MessageView) string {
	keys, n := strings.Join(view.GetKeys(), "+"), view.GetProperties()["n"]
	attempt := strconv.Itoa(int(view.GetDeliveryAttempt()))
	return strings.Join([]string{string(view.GetBody()), attempt, view.GetMessageId(),
		orNothing(view.GetTag()), orNothing(&keys), orNothing(view.GetMessageGroup()), orNothing(&n)}, ",")
}

func message(words []string) *rmq.Message {
	made := &rmq.Message{Topic: words[1], Body: []byte(words[2])}
	for _, word := range words[3:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "tag":
			made.SetTag(value)
		case "key":
			made.SetKeys(value)
		case "group":
			made.SetMessageGroup(value)
		case "at":
			at, _ := strconv.ParseInt(value, 10, 64)
			made.SetDelayTimestamp(time.UnixMilli(at))
		case "n":
			made.AddProperty("n", value)
		}
	}
	return made
}

func subscription(words []string) map[string]*rmq.FilterExpression {
	kind := rmq.TAG
	if words[3] == "sql" {
		kind = rmq.SQL92
	}
	text := strings.ReplaceAll(words[4], "_", " ")
	return map[string]*rmq.FilterExpression{words[2]: rmq.NewFilterExpressionWithType(text, kind)}
}

func seconds(word string) time.Duration {
	count, _ := strconv.Atoi(word)
	return time.Duration(count) * time.Second
}

func check(view *rmq.MessageView) rmq.TransactionResolution {
	if strings.HasPrefix(string(view.GetBody()), "commit") {
		return rmq.COMMIT
	}
	return rmq.ROLLBACK
}

func run(words []string) (said string, err error) {
	switch words[0] {
	case "producer":
		producer, err = rmq.NewProducer(configuration(""), rmq.WithTopics(words[1:]...),
			rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
		if err == nil {
			err = producer.Start()
		}
	case "send":
		receipts, err := producer.Send(context.Background(), message(words))
		if err != nil {
			return "", err
		}
		return receipts[0].MessageID, nil
	case "transaction":
		transaction := producer.BeginTransaction()
		if _, err = producer.SendWithTransaction(context.Background(), message(words), transaction); err != nil {
			return "", err
		}
		switch words[3] {
		case "end=commit":
			err = transaction.Commit()
		case "end=rollback":
			err = transaction.RollBack()
		}
	case "simple":
		consumer, err := rmq.NewSimpleConsumer(configuration(words[1]), rmq.WithSimpleAwaitDuration(2*time.Second),
			rmq.WithSimpleSubscriptionExpressions(subscription(words)))
		if err != nil {
			return "", err
		}
		simple[words[1]], running[words[1]] = consumer, consumer
		return "", consumer.Start()
	case "receive":
		got, err := simple[words[1]].Receive(context.Background(), 32, seconds(words[2]))
		var status *rmq.ErrRpcStatus
		if errors.As(err, &status) && status.Code == 40401 { // no message: an error for this client
			return "", nil
		}
		found := []string{}
		for _, view := range got {
			views[string(view.GetBody())] = view
			views[fmt.Sprintf("%s@%d", view.GetBody(), view.GetDeliveryAttempt())] = view
			found = append(found, described(view))
		}
		return strings.Join(found, " "), err
	case "ack":
		err = simple[words[1]].Ack(context.Background(), views[words[2]])
	case "hide":
		err = simple[words[1]].ChangeInvisibleDuration(views[words[2]], seconds(words[3]))
	case "push":
		listen := func(view *rmq.MessageView) rmq.ConsumerResult {
			lock.Lock()
			defer lock.Unlock()
			seen[words[1]] = append(seen[words[1]], described(view))
			if strings.HasPrefix(string(view.GetBody()), "bad") {
				return rmq.FAILURE
			}
			return rmq.SUCCESS
		}
		consumer, err := rmq.NewPushConsumer(configuration(words[1]), rmq.WithPushAwaitDuration(5*time.Second),
			rmq.WithPushSubscriptionExpressions(subscription(words)),
			rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listen}))
		if err != nil {
			return "", err
		}
		running[words[1]] = consumer
		return "", consumer.Start()
	case "seen":
		count, _ := strconv.Atoi(words[2])
		for end := time.Now().Add(seconds(words[3])); ; time.Sleep(10 * time.Millisecond) {
			lock.Lock()
			got := seen[words[1]]
			lock.Unlock()
			if len(got) >= count || time.Now().After(end) {
				return strings.Join(got, " "), nil
			}
		}
	case "leave":
		err = running[words[1]].GracefulStop()
	default:
		err = errors.New(words[0])
	}
	return "done", err
}

func main() {
	if os.Args[2] == "plain" {
		rmq.EnableSsl = false
	}
	endpoint, namespace = os.Args[1], os.Args[3]
	os.Setenv("rocketmq.client.logRoot", os.Args[4])
	rmq.ResetLogger()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		said, err := run(strings.Split(lines.Text(), " "))
		if err != nil {
			said = "failed " + strings.ReplaceAll(err.Error(), "\n", " ")
		} else {
			said = "ok " + said
		}
		fmt.Printf("\n> %s\n", said)
	}
}
