package checker

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
)

// A mistake is made on purpose: the checker must find it.
type mistake struct {
	name   string
	seed   uint64 // of the first history that is known to show it
	run    func(context.Context, Ground, uint64, int, Mutant) Result
	setup  func(*dynamotest.Proxy) // of the history without the mistake too
	mutant Mutant
	want   string // the promise that is broken
	says   string // of what; may be empty
}

// dropping takes a part out of the conditions of the writes that have the mark in their
// expressions.
func dropping(mark, part string) func(*dynamotest.Proxy) {
	return func(p *dynamotest.Proxy) {
		p.Rewrite = func(r *dynamotest.Request) {
			for _, w := range writes(r) {
				if strings.Contains(text(w, "UpdateExpression")+" IF "+text(w, "ConditionExpression"), mark) {
					w["ConditionExpression"] = strings.ReplaceAll(text(w, "ConditionExpression"), part, "")
					tidy(w)
				}
			}
		}
	}
}

// writes are the parts of the request that change an item.
func writes(r *dynamotest.Request) (all []map[string]any) {
	if r.Operation == "UpdateItem" {
		return []map[string]any{r.Body}
	}
	items, _ := r.Body["TransactItems"].([]any)
	for _, item := range items {
		for _, action := range item.(map[string]any) {
			all = append(all, action.(map[string]any))
		}
	}
	return all
}

func text(w map[string]any, name string) string {
	s, _ := w[name].(string)
	return s
}

// tidy takes out the names and values that no expression uses: DynamoDB refuses them.
func tidy(w map[string]any) {
	used := text(w, "UpdateExpression") + " " + text(w, "ConditionExpression")
	for _, attribute := range []string{"ExpressionAttributeNames", "ExpressionAttributeValues"} {
		placeholders, _ := w[attribute].(map[string]any)
		for name := range placeholders {
			if !regexp.MustCompile(regexp.QuoteMeta(name) + `\b`).MatchString(used) {
				delete(placeholders, name)
			}
		}
	}
}

// forceWithoutBump leaves the token as it is.
func forceWithoutBump(p *dynamotest.Proxy) {
	p.Rewrite = func(r *dynamotest.Request) {
		if set := text(r.Body, "UpdateExpression"); strings.Contains(set, "#forced = :forced") {
			r.Body["UpdateExpression"] = strings.ReplaceAll(set, "#fence = :next, ", "")
			tidy(r.Body)
		}
	}
}

// inconsistently has every read ask for no consistency.
func inconsistently(p *dynamotest.Proxy) {
	p.Rewrite = func(r *dynamotest.Request) {
		if r.Operation == "GetItem" {
			delete(r.Body, "ConsistentRead")
		}
	}
}

// deleting removes an item that was released.
func deleting(t *testing.T) func(*dynamotest.Proxy) {
	client := engine.DynamoDB(t).Client()
	return func(p *dynamotest.Proxy) {
		p.Then = func(r dynamotest.Request) {
			set := text(r.Body, "UpdateExpression")
			if !strings.Contains(set, "#released = :true") || strings.Contains(set, "#forced") {
				return
			}
			table := text(r.Body, "TableName")
			pk := r.Body["Key"].(map[string]any)["pk"].(map[string]any)["S"].(string)
			if _, err := client.DeleteItem(context.Background(), &dynamodb.DeleteItemInput{TableName: &table, Key: dynamo.Item{"pk": dynamo.S(pk)}}); err != nil {
				t.Error(err)
			}
		}
	}
}

// stale says of every conflict that the writer's token is stale.
func stale(answer any, err error) (any, error) {
	_, conflict := errors.AsType[*types.TransactionCanceledException](err)
	if _, write := answer.(fencing.Written); !write || !conflict || !errors.Is(err, keytype.ErrUnavailable) {
		return answer, err
	}
	return fencing.Written{Verdict: fencing.NotHolder}, nil
}

func conflicts(p *dynamotest.Proxy) { p.Rates[dynamotest.Conflict] = 0.5 }

func hideOldItems(p *dynamotest.Proxy) { p.HideOldItems = true }

func mistakes(t *testing.T) []mistake {
	return []mistake{
		{"renew without expires > now", 4, Leases, nil, Mutant{Proxy: dropping("#expires > :now AND #expires <= :to", " AND #expires > :now")}, "linearizable", "renew token"},
		{"delete on release", 1, Leases, nil, Mutant{Proxy: deleting(t)}, "tokens grow", ""},
		{"no request id in the condition", 98, Leases, nil, Mutant{Proxy: dropping("#owner_key = :owner_key", " AND NOT (#owner = :owner AND #request_id = :request_id)")}, "a request gets one token", ""},
		{"no sequence in the condition of a record", 4, Leases, nil, Mutant{Proxy: dropping("#sequence = :sequence", " AND #sequence < :sequence")}, "accepted writes have growing positions", ""},
		{"no sequence in the condition of a mark", 70, Leases, nil, Mutant{Proxy: dropping("#seq = :seq", " AND (attribute_not_exists(#seq_token) OR #seq_token < :token OR #seq <= :seq)")}, "no token below the highest admitted", ""},
		{"a record that asks for no lease", 3, Leases, nil, Mutant{Proxy: dropping("#fence = :token AND #lease_id = :lease_id AND #released = :false", " AND (#fence = :token AND #lease_id = :lease_id AND #released = :false)")}, "in mode lease nobody writes after a later grant", ""},
		{"no guard", 2, Leases, nil, Mutant{NoGuard: true}, "one holder at a time", ""},
		{"force without bump", 1, Leases, nil, Mutant{Proxy: forceWithoutBump}, "a forced release bumps", ""},
		{"a conflict is called stale", 1, Leases, conflicts, Mutant{Misread: stale}, "linearizable", "write k0"},
		{"a decision from a read that is not consistent", 2, Leases, hideOldItems, Mutant{Proxy: inconsistently}, "linearizable", "renew token"},
		{"an unconditional completion", 2, Records, nil, Mutant{Proxy: dropping("#response = :response", " AND (#claim_id = :claim_id AND #abandoned = :false AND #expires > :now AND (attribute_not_exists(#response) OR #response = :response))")}, "a superseded executor cannot complete", ""},
		{"a refund without its condition", 1, Quotas, nil, Mutant{Proxy: refunding}, "no unit is lost", ""},
	}
}

// refunding takes the conditions out of the transactions that end a reservation.
func refunding(p *dynamotest.Proxy) {
	p.Rewrite = func(r *dynamotest.Request) {
		all, ends := writes(r), false
		for _, w := range all {
			values, _ := w["ExpressionAttributeValues"].(map[string]any)
			phase, _ := values[":phase"].(map[string]any)
			ends = ends || phase["N"] == "2" || phase["N"] == "3"
		}
		for _, w := range all {
			if ends {
				w["ConditionExpression"] = strings.ReplaceAll(text(w, "ConditionExpression"), " AND (#writes = :seen)", "")
				tidy(w)
			}
		}
	}
}

// Each mistake is found, in a history that can be run again: with the mistake it shows the
// same, without it nothing.
func TestMutantsAreKilled(t *testing.T) {
	ground, err := Dynamo(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mistakes(t) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			with := m.mutant
			with.Proxy = both(m.setup, m.mutant.Proxy)
			run := func(seed uint64, mutant Mutant) []Violation {
				return m.run(t.Context(), ground, seed, 100, mutant).Violations
			}
			seed, found := m.hunt(t, func(seed uint64) []Violation { return run(seed, with) })
			if again := m.broken(run(seed, with)); again == nil {
				t.Errorf("seed %d does not show it again", seed)
			}
			if clean := run(seed, Mutant{Proxy: m.setup}); len(clean) > 0 {
				t.Errorf("seed %d without the mistake: %v", seed, clean)
			}
			t.Logf("seed %d, twice: %v; and without the mistake nothing", seed, found)
		})
	}
}

// hunt looks for a history that shows the mistake. Where calls or clients were changed, it is
// another one than before.
func (m mistake) hunt(t *testing.T, run func(seed uint64) []Violation) (seed uint64, found *Violation) {
	t.Helper()
	for seed = m.seed; seed < m.seed+200; seed++ {
		if found = m.broken(run(seed)); found != nil {
			return seed, found
		}
	}
	t.Fatal("it survived 200 histories")
	return 0, nil
}

// broken is how the promise was broken that the mistake breaks, nil if it was not.
func (m mistake) broken(all []Violation) *Violation {
	for _, v := range all {
		if v.Promise == m.want && strings.Contains(v.What, m.says) {
			return &v
		}
	}
	return nil
}

// A history is the same each time that it is run.
func TestHistoriesRunAgain(t *testing.T) {
	ground, err := Dynamo(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context, Ground, uint64, int, Mutant) Result{Leases, Records, Quotas} {
		for seed := range uint64(3) {
			a, b := run(t.Context(), ground, seed, 100, Mutant{}), run(t.Context(), ground, seed, 100, Mutant{})
			if a.Ticks != b.Ticks || a.Ended != b.Ended || !maps.Equal(a.Counts, b.Counts) {
				t.Errorf("seed %d: %+v, and again %+v", seed, a, b)
			}
		}
	}
}

func both(a, b func(*dynamotest.Proxy)) func(*dynamotest.Proxy) {
	return func(p *dynamotest.Proxy) {
		if a != nil {
			a(p)
		}
		if b != nil {
			b(p)
		}
	}
}
