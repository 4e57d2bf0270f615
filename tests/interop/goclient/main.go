// RocketMQ's Go client at a cluster of ours, told by lines "NAME TOPIC": runs the scenario on the
// topic and prints "> TOPIC ok ..." or "> TOPIC failed ...". All run at once.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 60 * time.Second

var nameserver string

type bodies struct {
	sync.Mutex
	seen  map[string]int
	order map[string][]string // by key
}

func (b *bodies) add(messages []*primitive.MessageExt) {
	b.Lock()
	defer b.Unlock()
	for _, message := range messages {
		b.seen[string(message.Body)]++
		key := message.GetShardingKey()
		b.order[key] = append(b.order[key], string(message.Body))
	}
}

func (b *bodies) count() int {
	b.Lock()
	defer b.Unlock()
	return len(b.seen)
}

func started(group string, options ...producer.Option) (rocketmq.Producer, error) {
	options = append(options, producer.WithNameServer([]string{nameserver}), producer.WithGroupName(group), producer.WithInstanceName(group), producer.WithRetry(2))
	made, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

// consumed waits until the group got so many different bodies.
func consumed(topic, group string, count int, ordered bool, answer func([]*primitive.MessageExt) consumer.ConsumeResult) (*bodies, error) {
	came := &bodies{seen: map[string]int{}, order: map[string][]string{}}
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{nameserver}), consumer.WithGroupName(group), consumer.WithInstance(group+"-consumer"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumerOrder(ordered))
	if err != nil {
		return nil, err
	}
	err = made.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		if answer != nil {
			result = answer(messages)
		}
		if result == consumer.ConsumeSuccess {
			came.add(messages)
		}
		return result, nil
	})
	if err != nil {
		return nil, err
	}
	if err = made.Start(); err != nil {
		return nil, err
	}
	defer made.Shutdown()
	end := time.Now().Add(patience)
	for came.count() < count {
		if time.Now().After(end) {
			return nil, fmt.Errorf("%d of %d messages came to %s", came.count(), count, group)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return came, nil
}

func send(topic string) (string, error) {
	made, err := started(topic)
	if err != nil {
		return "", err
	}
	defer made.Shutdown()
	for number := 0; number < 100; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("s%d", number))).WithTag("tag").WithKeys([]string{"key"})
		result, err := made.SendSync(context.Background(), message)
		if err != nil || result.Status != primitive.SendOK {
			return "", fmt.Errorf("sync: %v %v", result, err)
		}
	}
	var answers sync.WaitGroup
	var failed error
	for number := 0; number < 100; number++ {
		answers.Add(1)
		err := made.SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			if err != nil {
				failed = err
			}
			answers.Done()
		}, primitive.NewMessage(topic, []byte(fmt.Sprintf("a%d", number))))
		if err != nil {
			return "", err
		}
	}
	answers.Wait()
	if failed != nil {
		return "", failed
	}
	batch := []*primitive.Message{}
	for number := 0; number < 50; number++ {
		if err := made.SendOneWay(context.Background(), primitive.NewMessage(topic, []byte(fmt.Sprintf("o%d", number)))); err != nil {
			return "", err
		}
		batch = append(batch, primitive.NewMessage(topic, []byte(fmt.Sprintf("b%d", number))))
	}
	if result, err := made.SendSync(context.Background(), batch...); err != nil || result.Status != primitive.SendOK {
		return "", fmt.Errorf("batch: %v %v", result, err)
	}
	large := primitive.NewMessage(topic, []byte(strings.Repeat("x", 100000)))
	if _, err := made.SendSync(context.Background(), large); err != nil {
		return "", err
	}
	if _, err = consumed(topic, topic, 301, false, nil); err != nil {
		return "", err
	}
	return "301 messages", nil
}

func orderly(topic string) (string, error) {
	made, err := started(topic, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return "", err
	}
	defer made.Shutdown()
	for number := 0; number < 200; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%03d", number)))
		message.WithShardingKey(fmt.Sprintf("key-%d", number%5))
		if _, err := made.SendSync(context.Background(), message); err != nil {
			return "", err
		}
	}
	came, err := consumed(topic, topic, 200, true, nil)
	if err != nil {
		return "", err
	}
	for key, order := range came.order {
		if len(order) != 40 || !sort.StringsAreSorted(order) {
			return "", fmt.Errorf("%s came as %v", key, order)
		}
	}
	return "200 messages", nil
}

func retry(topic string) (string, error) {
	made, err := started(topic)
	if err != nil {
		return "", err
	}
	defer made.Shutdown()
	for number := 0; number < 5; number++ {
		if _, err := made.SendSync(context.Background(), primitive.NewMessage(topic, []byte(fmt.Sprintf("r%d", number)))); err != nil {
			return "", err
		}
	}
	_, err = consumed(topic, topic, 5, false, func(messages []*primitive.MessageExt) consumer.ConsumeResult {
		if messages[0].ReconsumeTimes == 0 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	return "5 messages", err
}

func delay(topic string) (string, error) {
	made, err := started(topic)
	if err != nil {
		return "", err
	}
	defer made.Shutdown()
	began := time.Now()
	message := primitive.NewMessage(topic, []byte("later")).WithDelayTimeLevel(2)
	if _, err := made.SendSync(context.Background(), message); err != nil {
		return "", err
	}
	if _, err = consumed(topic, topic, 1, false, nil); err != nil {
		return "", err
	}
	if took := time.Since(began); took < 5*time.Second {
		return "", fmt.Errorf("a delay of 5 s took %s", took)
	}
	return "1 message", nil
}

type listener struct{}

func (listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body)[:1] {
	case "c":
		return primitive.CommitMessageState
	case "r":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (listener) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.CommitMessageState
}

func transactions(topic string) (string, error) {
	made, err := rocketmq.NewTransactionProducer(listener{}, producer.WithNameServer([]string{nameserver}), producer.WithGroupName(topic), producer.WithInstanceName(topic))
	if err != nil {
		return "", err
	}
	if err := made.Start(); err != nil {
		return "", err
	}
	defer made.Shutdown()
	for number := 0; number < 30; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%c%d", "cru"[number%3], number)))
		message.WithProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "1")
		if _, err := made.SendMessageInTransaction(context.Background(), message); err != nil {
			return "", err
		}
	}
	came, err := consumed(topic, topic, 20, false, nil)
	if err != nil {
		return "", err
	}
	for body := range came.seen {
		if body[0] == 'r' {
			return "", fmt.Errorf("%s was rolled back and came", body)
		}
	}
	return "20 messages", nil
}

func main() {
	rlog.SetLogLevel("error")
	nameserver = os.Args[1]
	scenarios := map[string]func(string) (string, error){
		"send": send, "orderly": orderly, "retry": retry, "delay": delay, "transactions": transactions,
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		go func() {
			said, err := scenarios[words[0]](words[1])
			if err != nil {
				said = "failed " + strings.ReplaceAll(err.Error(), "\n", " ")
			} else {
				said = "ok " + said
			}
			fmt.Printf("\n> %s %s\n", words[1], said)
		}()
	}
}
