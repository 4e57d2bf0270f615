//! RocketMQ's Rust client of version 5, told by lines; see interop_grpc.py for them. Arguments: the endpoint, and tls or plain. The client has no
//! push consumer, no change of the invisible time and no recall, and sends delivery times in whole seconds.
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

type Said = Result<String, Box<dyn Error + Send + Sync>>;

struct Consumer {
    client: SimpleConsumer,
    topic: String,
    expression: FilterExpression,
}

#[derive(Default)]
struct Program {
    producer: OnceLock<Producer>,
    simple: Mutex<HashMap<String, Arc<Consumer>>>,
    views: Mutex<HashMap<String, Arc<MessageView>>>,
}

fn option() -> ClientOption {
    let arguments: Vec<String> = std::env::args().collect();
    let mut made = ClientOption::default();
    made.set_access_url(&arguments[1]);
    made.set_enable_tls(arguments[2] == "tls");
    made.set_long_polling_timeout(Duration::from_secs(5));
    made
}

fn body(view: &MessageView) -> String {
    String::from_utf8_lossy(view.body()).into_owned()
}

fn described(view: &MessageView) -> String {
    let keys = if view.keys().is_empty() { "-".to_string() } else { view.keys().join("+") };
    let n = view.properties().get("n").map_or("-", |text| text);
    let attempt = view.delivery_attempt().to_string();
    [&body(view), &attempt, view.message_id(), view.tag().unwrap_or("-"), &keys, view.message_group().unwrap_or("-"), n].join(",")
}

fn message(words: &[String]) -> MessageBuilder {
    let mut made = MessageBuilder::builder().set_topic(&words[1]).set_body(words[2].clone().into_bytes());
    for (name, value) in words[3..].iter().filter_map(|word| word.split_once('=')) {
        made = match name {
            "tag" => made.set_tag(value),
            "key" => made.set_keys(vec![value]),
            "group" => made.set_message_group(value),
            "at" => made.set_delivery_timestamp(value.parse::<i64>().unwrap() / 1000),
            "n" => made.set_properties(HashMap::from([("n", value)])),
            _ => made, // the end of a transaction
        };
    }
    made
}

impl Program {
    fn consumer(&self, group: &str) -> Arc<Consumer> {
        self.simple.lock().unwrap()[group].clone()
    }

    async fn run(&self, words: Vec<String>) -> Said {
        match words[0].as_str() {
            "producer" => {
                let mut wanted = ProducerOption::default();
                wanted.set_topics(words[1..].to_vec());
                let check = |_: String, view: MessageView| {
                    if body(&view).starts_with("commit") { TransactionResolution::COMMIT } else { TransactionResolution::ROLLBACK }
                };
                let mut made = Producer::new_transaction_producer(wanted, option(), Box::new(check))?;
                made.start().await?;
                let _ = self.producer.set(made);
                Ok("started".into())
            }
            "send" => {
                let receipt = self.producer.get().unwrap().send(message(&words).build()?).await?;
                Ok(receipt.message_id().into())
            }
            "batch" => {
                let bodies = words[2..].iter().map(|body| message(&[words[0].clone(), words[1].clone(), body.clone()]).build());
                let receipts = self.producer.get().unwrap().batch_send(bodies.collect::<Result<Vec<_>, _>>()?).await?;
                Ok(receipts.iter().map(|each| each.message_id()).collect::<Vec<_>>().join(" "))
            }
            "transaction" => {
                let made = message(&words).enable_transaction().build()?;
                let transaction = self.producer.get().unwrap().send_transaction_message(made).await?;
                match words[3].as_str() {
                    "end=commit" => transaction.commit().await?,
                    "end=rollback" => transaction.rollback().await?,
                    _ => {}
                }
                Ok("sent".into())
            }
            "simple" => {
                let mut wanted = SimpleConsumerOption::default();
                wanted.set_consumer_group(&words[1]);
                wanted.set_topics(vec![&words[2]]);
                let mut client = SimpleConsumer::new(wanted, option())?;
                client.start().await?;
                let kind = if words[3] == "sql" { FilterType::Sql } else { FilterType::Tag };
                let expression = FilterExpression::new(kind, words[4].replace('_', " "));
                let made = Consumer { client, topic: words[2].clone(), expression };
                self.simple.lock().unwrap().insert(words[1].clone(), Arc::new(made));
                Ok("started".into())
            }
            "receive" => {
                let from = self.consumer(&words[1]);
                let hidden = Duration::from_secs(words[2].parse()?);
                let got = from.client.receive_with(&from.topic, &from.expression, 32, hidden).await?;
                let said = got.iter().map(described).collect::<Vec<_>>().join(" ");
                let mut views = self.views.lock().unwrap();
                for view in got.into_iter().map(Arc::new) {
                    views.insert(body(&view), view.clone());
                    views.insert(format!("{}@{}", body(&view), view.delivery_attempt()), view);
                }
                Ok(said)
            }
            "ack" => {
                let view = self.views.lock().unwrap()[&words[2]].clone();
                self.consumer(&words[1]).client.ack(view.as_ref()).await?;
                Ok("done".into())
            }
            "leave" => {
                let left = self.simple.lock().unwrap().remove(&words[1]).unwrap();
                let left = Arc::try_unwrap(left).map_err(|_| "a call is under way")?;
                left.client.shutdown().await?;
                Ok("left".into())
            }
            other => Err(format!("no line {other}").into()),
        }
    }
}

#[tokio::main]
async fn main() {
    let program = Arc::new(Program::default());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<String> = line.split(' ').map(str::to_string).collect();
        let running = program.clone();
        // The client panics where it cannot connect: a task of its own says so.
        let said = match tokio::spawn(async move { running.run(words).await }).await {
            Ok(Ok(said)) => format!("ok {said}"),
            Ok(Err(problem)) => format!("failed {problem}"),
            Err(panic) => format!("failed {panic}"),
        };
        println!("\n> {}", said.replace('\n', " "));
        std::io::stdout().flush().unwrap();
    }
}
