// Package dynamoidempotency decides with DynamoDB who may carry out a request: it is an
// idempotency.Store whose every step is one conditional UpdateItem.
//
// A condition says what the transition of package idempotency says. Where it fails, the
// transition itself decides from the item that the failed condition returns.
package dynamoidempotency

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/idempotency"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// maxRounds bounds the requests of one call. Each further round needs that others
// moved the item between two requests of this call.
const maxRounds = 8

// errContended says that nothing was written in maxRounds.
var errContended = fmt.Errorf("dynamoidempotency: others are always faster: %w", keytype.ErrUnavailable)

// client is what the store uses of a *dynamodb.Client.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
}

// Store is an idempotency.Store in DynamoDB.
type Store struct {
	client client
	table  string
}

// New makes a store over the table with the prefix.
func New(client client, prefix string) *Store {
	return &Store{client, keytype.Idempotency.TableName(prefix)}
}

// Table describes the table of records. Its TTL removes what ended idempotency.Retention ago.
func Table(prefix string) dynamo.Table {
	return dynamo.Table{Name: keytype.Idempotency.TableName(prefix), PartitionKey: "pk", TTL: ttl}
}

// A step is a transition and what carries it out on DynamoDB.
type step struct {
	decide func(idempotency.State) (idempotency.State, idempotency.Outcome)
	// change writes what decide says. seen is nil before the first request, else the
	// state that decide would change, as it was when the last condition failed.
	change func(seen *idempotency.State) dynamo.Change
}

// Claim implements idempotency.Store.
func (s *Store) Claim(ctx context.Context, id idempotency.ID, req idempotency.Claim) (idempotency.Outcome, error) {
	return s.run(ctx, "claim", id, step{
		decide: func(old idempotency.State) (idempotency.State, idempotency.Outcome) { return old.Claim(req) },
		change: func(*idempotency.State) dynamo.Change { return claim(req) },
	})
}

// Extend implements idempotency.Store. UpdateItem cannot take the larger of two
// values: the first try demands that the new end is right as it stands, the next
// names what it replaces.
func (s *Store) Extend(ctx context.Context, id idempotency.ID, req idempotency.Extend) (idempotency.Outcome, error) {
	return s.run(ctx, "extend", id, step{
		decide: func(old idempotency.State) (idempotency.State, idempotency.Outcome) { return old.Extend(req) },
		change: func(seen *idempotency.State) dynamo.Change {
			if seen == nil {
				return extend(req)
			}
			next, _ := seen.Extend(req)
			return extendFrom(req, *seen, next)
		},
	})
}

// Complete implements idempotency.Store.
func (s *Store) Complete(ctx context.Context, id idempotency.ID, req idempotency.Complete) (idempotency.Outcome, error) {
	return s.run(ctx, "complete", id, step{
		decide: func(old idempotency.State) (idempotency.State, idempotency.Outcome) { return old.Complete(req) },
		change: func(*idempotency.State) dynamo.Change { return complete(req) },
	})
}

// Abandon implements idempotency.Store.
func (s *Store) Abandon(ctx context.Context, id idempotency.ID, req idempotency.Abandon) (idempotency.Outcome, error) {
	return s.run(ctx, "abandon", id, step{
		decide: func(old idempotency.State) (idempotency.State, idempotency.Outcome) { return old.Abandon(req) },
		change: func(*idempotency.State) dynamo.Change { return abandon(req) },
	})
}

func (s *Store) run(ctx context.Context, op string, id idempotency.ID, st step) (idempotency.Outcome, error) {
	out, err := s.rounds(ctx, id, st)
	if err != nil {
		return idempotency.Outcome{}, fmt.Errorf("%s %q: %w", op, id.Key, err)
	}
	return out, nil
}

func (s *Store) rounds(ctx context.Context, id idempotency.ID, st step) (idempotency.Outcome, error) {
	var seen *idempotency.State
	for range maxRounds {
		c := st.change(seen)
		c.Table, c.Key, c.Format = s.table, key(id), format
		result, err := dynamo.Update(ctx, s.client, c)
		if err != nil {
			return idempotency.Outcome{}, err
		}
		state, err := read(result.Item)
		if err != nil {
			return idempotency.Outcome{}, result.Unreadable(err)
		}
		if result.Applied {
			return idempotency.Outcome{Verdict: idempotency.Done, State: state}, nil
		}
		next, out := st.decide(state)
		if next == state {
			return answer(result, out)
		}
		seen = &state
	}
	return idempotency.Outcome{}, errContended
}

// answer hands out what the transition decided. A refusal needs that no earlier
// try of the same call has had an effect.
func answer(result dynamo.Result, out idempotency.Outcome) (idempotency.Outcome, error) {
	if out.Verdict == idempotency.Done || out.Verdict == idempotency.Completed {
		return out, nil
	}
	if err := result.Sure(); err != nil {
		return idempotency.Outcome{}, err
	}
	return out, nil
}
