// What a Go application does with Sarama, step by step: topics, every codec, idempotence, reading, a group of two.
//
// sarama_steps BOOTSTRAP
//
// Prints "ok STEP" or "FAIL STEP: why" for each step, and ends with status 0 once all were tried.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/Shopify/sarama"
)

const (
	partitions = 4
	perCodec   = 100
	patience   = 20 * time.Second
	// UNSUPPORTED_COMPRESSION_TYPE, which this library has no name for.
	unsupportedCompression = 76
)

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4,
}

func step(name string, act func() error) {
	if err := act(); err != nil {
		fmt.Printf("FAIL %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok %s\n", name)
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = "sarama-steps"
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	return config
}

func produce(addresses []string, topic, codec string, idempotent bool) error {
	return produceWith(addresses, topic, codecs[codec], codec, idempotent)
}

func produceWith(addresses []string, topic string, compression sarama.CompressionCodec, codec string, idempotent bool) error {
	config := settings()
	config.Producer.Compression = compression
	if idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer(addresses, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for number := 0; number < perCodec; number++ {
		messages = append(messages, &sarama.ProducerMessage{
			Topic:   topic,
			Key:     sarama.StringEncoder(fmt.Sprintf("%s-%d", codec, number)),
			Value:   sarama.StringEncoder(strings.Repeat(codec, 20)),
			Headers: []sarama.RecordHeader{{Key: []byte("codec"), Value: []byte(codec)}},
		})
	}
	return producer.SendMessages(messages)
}

// Reads a partition to its end and counts keys that were not there before.
func read(consumer sarama.Consumer, client sarama.Client, topic string, partition int32, seen map[string]bool) error {
	end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
	if err != nil || end == 0 {
		return err
	}
	reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		select {
		case message := <-reader.Messages():
			seen[string(message.Key)] = true
			if len(message.Headers) != 1 || !strings.HasPrefix(string(message.Value), string(message.Headers[0].Value)) {
				return fmt.Errorf("the record at %d-%d is not what was written", partition, message.Offset)
			}
			if message.Offset+1 == end {
				return nil
			}
		case problem := <-reader.Errors():
			return problem
		case <-time.After(patience):
			return fmt.Errorf("partition %d was not read to its end %d", partition, end)
		}
	}
}

// A member of the group: it marks what it reads.
type member struct {
	lock     *sync.Mutex
	seen     map[string]int
	complete chan struct{}
	want     int
	problem  error
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.lock.Lock()
		m.seen[string(message.Key)]++
		if len(m.seen) == m.want {
			select {
			case <-m.complete:
			default:
				close(m.complete)
			}
		}
		m.lock.Unlock()
		session.MarkMessage(message, "marked")
	}
	return nil
}

// Two members read the topic together until every key was seen.
func group(addresses []string, topic, name string, want int) error {
	shared := &member{lock: &sync.Mutex{}, seen: map[string]int{}, complete: make(chan struct{}), want: want}
	end, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for number := 0; number < 2; number++ {
		consumer, err := sarama.NewConsumerGroup(addresses, name, settings())
		if err != nil {
			stop()
			return err
		}
		running.Add(1)
		go func() {
			defer running.Done()
			// A rebalance ends Consume, as does a coordinator that has not read its partition yet; the member joins again.
			for end.Err() == nil {
				if err := consumer.Consume(end, []string{topic}, shared); err != nil {
					shared.lock.Lock()
					shared.problem = err
					shared.lock.Unlock()
					time.Sleep(100 * time.Millisecond)
				}
			}
			consumer.Close()
		}()
	}
	var outcome error
	select {
	case <-shared.complete:
	case <-time.After(patience):
		shared.lock.Lock()
		outcome = fmt.Errorf("%d of %d keys were read; the last problem: %v", len(shared.seen), want, shared.problem)
		shared.lock.Unlock()
	}
	stop()
	running.Wait()
	return outcome
}

func main() {
	addresses := strings.Split(os.Args[1], ",")
	topic := fmt.Sprintf("sarama-%d", time.Now().UnixNano())
	name := "group-of-" + topic
	client, err := sarama.NewClient(addresses, settings())
	if err != nil {
		fmt.Println("FAIL connect:", err)
		os.Exit(1)
	}
	admin, err := sarama.NewClusterAdmin(addresses, settings())
	if err != nil {
		fmt.Println("FAIL connect as an admin:", err)
		os.Exit(1)
	}
	step("create a topic, validate only", func() error {
		return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 3}, true)
	})
	step("create a topic", func() error {
		retention := "3600000"
		detail := sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 3, ConfigEntries: map[string]*string{"retention.ms": &retention}}
		return admin.CreateTopic(topic, &detail, false)
	})
	step("create it again", func() error {
		err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 3}, false)
		if err == nil || !strings.Contains(err.Error(), "exists") {
			return fmt.Errorf("answered with %v", err)
		}
		return nil
	})
	step("add partitions", func() error { return admin.CreatePartitions(topic, partitions, nil, false) })
	step("describe the cluster", func() error {
		// It asks in the oldest way, which tells no controller.
		brokers, _, err := admin.DescribeCluster()
		if err == nil && len(brokers) != 3 {
			return fmt.Errorf("%d brokers", len(brokers))
		}
		return err
	})
	step("describe the topic", func() error {
		deadline := time.Now().Add(patience)
		for {
			topics, err := admin.DescribeTopics([]string{topic})
			if err != nil {
				return err
			}
			if len(topics) == 1 && len(topics[0].Partitions) == partitions {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%d topics described, the partitions are not all there", len(topics))
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	step("alter and describe configs", func() error {
		retention := "7200000"
		if err := admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": &retention}, false); err != nil {
			return err
		}
		entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
		if err == nil && (len(entries) != 1 || entries[0].Value != retention) {
			return fmt.Errorf("described as %v", entries)
		}
		return err
	})
	if err := client.RefreshMetadata(topic); err != nil {
		fmt.Println("FAIL refresh the metadata:", err)
	}
	for codec := range codecs {
		codec := codec
		step("produce "+codec, func() error { return produce(addresses, topic, codec, false) })
	}
	step("zstd is refused, for this library produces as of version 3", func() error {
		err := produceWith(addresses, topic, sarama.CompressionZSTD, "zstd", false)
		if problems, ok := err.(sarama.ProducerErrors); ok && int16(problems[0].Err.(sarama.KError)) == unsupportedCompression {
			return nil
		}
		return fmt.Errorf("answered with %v", err)
	})
	step("produce idempotently", func() error { return produce(addresses, topic, "lz4", true) })
	want := len(codecs) * perCodec
	step("read every partition", func() error {
		consumer, err := sarama.NewConsumerFromClient(client)
		if err != nil {
			return err
		}
		defer consumer.Close()
		seen := map[string]bool{}
		for partition := int32(0); partition < partitions; partition++ {
			if err := read(consumer, client, topic, partition, seen); err != nil {
				return err
			}
		}
		if len(seen) != want {
			return fmt.Errorf("%d of %d keys were read", len(seen), want)
		}
		return nil
	})
	step("offsets by time", func() error {
		offset, err := client.GetOffset(topic, 0, time.Now().Add(-time.Hour).UnixNano()/int64(time.Millisecond))
		if err == nil && offset != 0 {
			return fmt.Errorf("offset %d, not the first", offset)
		}
		return err
	})
	step("read in a group of two", func() error { return group(addresses, topic, name, want) })
	step("list groups", func() error {
		groups, err := admin.ListConsumerGroups()
		if err == nil && groups[name] != "consumer" {
			return fmt.Errorf("not among %v", groups)
		}
		return err
	})
	step("describe the group", func() error {
		groups, err := admin.DescribeConsumerGroups([]string{name})
		if err == nil && (len(groups) != 1 || groups[0].State != "Empty") {
			return fmt.Errorf("described as %v", groups[0])
		}
		return err
	})
	step("committed offsets", func() error {
		numbers := []int32{0, 1, 2, 3}
		answer, err := admin.ListConsumerGroupOffsets(name, map[string][]int32{topic: numbers})
		if err != nil {
			return err
		}
		for _, number := range numbers {
			end, err := client.GetOffset(topic, number, sarama.OffsetNewest)
			if err != nil {
				return err
			}
			block := answer.GetBlock(topic, number)
			if block == nil || (block.Offset != end && end > 0) {
				return fmt.Errorf("partition %d ends at %d, committed is %v", number, end, block)
			}
		}
		return nil
	})
	step("delete records", func() error {
		// Its admin asks the controller, not the leader.
		leader, err := client.Leader(topic, 0)
		if err != nil {
			return err
		}
		offsets := map[string]*sarama.DeleteRecordsRequestTopic{topic: {PartitionOffsets: map[int32]int64{0: 3}}}
		answer, err := leader.DeleteRecords(&sarama.DeleteRecordsRequest{Topics: offsets, Timeout: patience})
		if err != nil {
			return err
		}
		if partition := answer.Topics[topic].Partitions[0]; partition.Err != sarama.ErrNoError || partition.LowWatermark != 3 {
			return fmt.Errorf("answered with %v", partition)
		}
		start, err := client.GetOffset(topic, 0, sarama.OffsetOldest)
		if err == nil && start != 3 {
			return fmt.Errorf("the log starts at %d", start)
		}
		return err
	})
	step("delete the topic", func() error { return admin.DeleteTopic(topic) })
	step("close", func() error {
		if err := admin.Close(); err != nil {
			return err
		}
		return client.Close()
	})
}
