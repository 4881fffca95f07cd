package dynamo_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
)

// A counter is an item that counts, over a wire.
type counter struct {
	*testing.T
	wire   *dynamotest.Wire
	client *dynamodb.Client
	change dynamo.Change
}

func newCounter(t *testing.T) *counter {
	e, wire := engine.DynamoDB(t), &dynamotest.Wire{}
	table := dynamo.Table{Name: e.Prefix(t) + "counters", PartitionKey: "pk"}
	if err := dynamo.Create(t.Context(), e.Client(), table); err != nil {
		t.Fatal(err)
	}
	return &counter{t, wire, e.Client(wire.Option), dynamo.Change{
		Table: table.Name, Key: dynamo.Item{"pk": dynamo.S("k")}, Format: 1,
		Set:       "#count = if_not_exists(#count, :zero) + :one",
		Condition: "attribute_not_exists(#count) OR #count < :limit",
		Values:    dynamo.Item{":zero": dynamo.N(0), ":one": dynamo.N(1), ":limit": dynamo.N(3)},
	}}
}

// update carries out the change and demands what came of it and how often it was sent.
func (c *counter) update(why string, applied bool, count int64, sent int) dynamo.Result {
	c.Helper()
	r, err := dynamo.Update(c.Context(), c.client, c.change)
	if err != nil {
		c.Fatalf("%s: %v", why, err)
	}
	item := dynamo.Read(r.Item, 1)
	if r.Applied != applied || item.Int("count") != count || item.Err() != nil {
		c.Errorf("%s: applied %t, %d, %v; want %t, %d", why, r.Applied, item.Int("count"), item.Err(), applied, count)
	}
	updates := 0
	for _, request := range c.wire.Take() {
		if request.Operation == "UpdateItem" {
			updates++
		}
	}
	if updates != sent {
		c.Errorf("%s: sent %d times, want %d", why, updates, sent)
	}
	return r
}

func TestUpdate(t *testing.T) {
	c := newCounter(t)
	c.update("no item yet", true, 1, 1)
	c.update("an item", true, 2, 1)
	c.update("an item", true, 3, 1)
	if r := c.update("the condition fails", false, 3, 1); r.Sure() != nil {
		t.Errorf("nothing was lost: %v", r.Sure())
	}
	c.wire.Take()
	item, err := dynamo.Get(t.Context(), c.client, c.change.Table, c.change.Key)
	if sent := c.wire.Take(); sent[0].Body["ConsistentRead"] != true {
		t.Errorf("the read may be stale: %v", sent)
	}
	if n := dynamo.Read(item, 1).Int("count"); n != 3 || err != nil {
		t.Errorf("stored %d, %v", n, err)
	}
}

func TestUpdateAfterALostReply(t *testing.T) {
	c := newCounter(t)
	c.wire.LoseReplies(1, nil)
	c.update("sent again, and counted twice", true, 2, 2)
	c.wire.LoseReplies(1, nil)
	if r := c.update("sent again, and the limit is reached", false, 3, 2); r.Sure() == nil {
		t.Error("a refusal whose earlier try counted says that it is sure")
	} else {
		expect(t, r.Sure(), keytype.ErrOutcomeUnknown)
	}
}

func TestL53UpdateOnce(t *testing.T) {
	c := newCounter(t)
	c.change.Once = true
	c.wire.LoseReplies(1, nil)
	if r := c.update("not sent again", false, 1, 1); r.Sure() == nil {
		t.Error("a lost answer says that it is sure")
	}
	c.wire.Refuse(2)
	c.update("throttled had no effect", true, 2, 3)
	c.wire.Refuse(9)
	_, err := dynamo.Update(t.Context(), c.client, c.change)
	expect(t, err, keytype.ErrUnavailable)
}

// An item that a newer version wrote is neither changed nor read.
func TestUpdateOfAnotherFormat(t *testing.T) {
	c := newCounter(t)
	c.update("ours", true, 1, 1)
	c.change.Format = 2
	r, err := dynamo.Update(t.Context(), c.client, c.change)
	if err != nil || r.Applied {
		t.Fatalf("applied %t, %v", r.Applied, err)
	}
	unreadable := dynamo.Read(r.Item, 2).Err()
	if unreadable == nil {
		t.Fatal("the other format was read")
	}
	expect(t, r.Unreadable(unreadable), keytype.ErrUnavailable)
	r.Applied = true
	expect(t, r.Unreadable(unreadable), keytype.ErrOutcomeUnknown)
	c.wire.LoseReplies(1, nil)
	if r, err = dynamo.Update(t.Context(), c.client, c.change); err != nil || r.Applied {
		t.Fatalf("applied %t, %v", r.Applied, err)
	}
	expect(t, r.Unreadable(unreadable), keytype.ErrOutcomeUnknown)
}

// L35: the names that DynamoDB refuses when they are written plainly.
func TestL35ReservedWords(t *testing.T) {
	c := newCounter(t)
	c.change.Set = "#owner = :one, #ttl = :one, #token = :one, #state = :one, #data = :one, #lock = :one, #count = :zero"
	c.change.Remove = "#status, #name"
	delete(c.change.Values, ":limit")
	c.change.Condition = "attribute_not_exists(#values)"
	c.update("reserved words", true, 0, 1)
}

func TestUpdateThatCannotRead(t *testing.T) {
	failed, denied := refuse(400, "ConditionalCheckFailedException"), refuse(400, "AccessDeniedException")
	for name, c := range map[string]struct {
		answers []answer
		want    error
	}{
		"the condition failed, sure":     {[]answer{failed, denied}, keytype.ErrUnavailable},
		"the condition failed, not sure": {[]answer{drop, failed, denied}, keytype.ErrOutcomeUnknown},
		"denied":                         {[]answer{denied}, keytype.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c.answers...)
			_, err := dynamo.Update(t.Context(), client(s.URL, keys), dynamo.Change{
				Table: "t", Key: dynamo.Item{"pk": dynamo.S("k")}, Set: "#a = :a", Condition: "attribute_not_exists(#a)",
				Values: dynamo.Item{":a": dynamo.N(1)},
			})
			expect(t, err, c.want)
		})
	}
}

func TestGetFaults(t *testing.T) {
	s := serve(t, refuse(400, "ResourceNotFoundException"))
	_, err := dynamo.Get(t.Context(), client(s.URL, keys), "t", dynamo.Item{"pk": dynamo.S("k")})
	expect(t, err, keytype.ErrUnavailable)
}
