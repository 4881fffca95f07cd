// Package dynamoquota decides with DynamoDB whether so many units may still be
// used: it is a quota.Store whose every step is at most one TransactWriteItems.
//
// A step concerns up to three items, and a transaction does not tell what it
// wrote. So the items are read, the transition of package quota decides, and what
// it changed is written on condition that all it was decided on is as it was read.
// Transactions on one item exclude each other in DynamoDB whatever their
// conditions are: this loses no concurrency, and every answer is exact.
package dynamoquota

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
)

// maxRounds bounds the transactions of one call. Each further round needs that
// another process changed the items between a read and a transaction of this call.
const maxRounds = 16

// maxPause bounds the time between two rounds, which is drawn at random.
const maxPause = 10 * time.Millisecond

// errContended says that nothing was written in maxRounds.
var errContended = fmt.Errorf("dynamoquota: others are always faster: %w", keytype.ErrUnavailable)

// client is what the store uses of a *dynamodb.Client.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
}

// Store is a quota.Store in DynamoDB.
type Store struct {
	client client
	tables tables
	turns  turns
	looks  atomic.Uint32 // of Due, each of which begins at another shard
}

// New makes a store over the tables with the prefix.
func New(client client, prefix string) *Store {
	return &Store{client: client, tables: tablesOf(prefix), turns: newTurns()}
}

// Set implements quota.Store.
func (s *Store) Set(ctx context.Context, id quota.ID, d quota.Definition, now time.Time) (quota.Outcome, error) {
	out, err := s.step(ctx, id, func(ctx context.Context, _ int) (view, quota.State, quota.Outcome, error) {
		v, err := s.readSetting(ctx, id)
		if err == nil {
			err = s.readAccount(ctx, &v, d, now)
		}
		next, out := v.Set(d)
		return v, next, out, err
	})
	return out, fault("set", id, err)
}

// Get implements quota.Store.
func (s *Store) Get(ctx context.Context, id quota.ID, now time.Time) (quota.Outcome, error) {
	v, err := s.readCurrent(ctx, id, now)
	if err != nil {
		return quota.Outcome{}, fault("get", id, err)
	}
	return v.Get(), nil
}

// Use implements quota.Store. Hardly any request is a repetition: the first round
// takes for granted that there is no receipt, which its transaction checks, and
// only a refusal looks before it is given.
func (s *Store) Use(ctx context.Context, id quota.ID, req quota.Use) (quota.Outcome, error) {
	out, err := s.step(ctx, id, func(ctx context.Context, round int) (view, quota.State, quota.Outcome, error) {
		v, err := s.readCurrent(ctx, id, req.Now)
		if err != nil {
			return v, v.State, quota.Outcome{}, err
		}
		v.requestID = req.RequestID
		next, out := v.Use(req)
		if round == 0 && out.Verdict != quota.Exceeded {
			return v, next, out, nil
		}
		err = s.readReceipt(ctx, &v)
		next, out = v.Use(req)
		return v, next, out, err
	})
	return out, fault("use", id, err)
}

// Settle implements quota.Store.
func (s *Store) Settle(ctx context.Context, id quota.ID, req quota.Settle) (quota.Outcome, error) {
	out, err := s.step(ctx, id, func(ctx context.Context, _ int) (view, quota.State, quota.Outcome, error) {
		v, err := s.readReservation(ctx, id, req.Reservation)
		next, out := v.Settle(req)
		return v, next, out, err
	})
	return out, fault("settle", id, err)
}

// A decision reads what a step concerns and runs its transition. It is called
// again, with the next round, when what it read was out of date.
type decision func(ctx context.Context, round int) (old view, next quota.State, out quota.Outcome, err error)

// step decides and writes. The steps of this process on one quota take turns: they
// would only cancel each other's transactions.
func (s *Store) step(ctx context.Context, id quota.ID, decide decision) (quota.Outcome, error) {
	done, err := s.turns.take(ctx, id)
	if err != nil {
		return quota.Outcome{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	defer done()
	for round := range maxRounds {
		old, next, out, err := decide(ctx, round)
		if err != nil {
			return quota.Outcome{}, err
		}
		changes := s.changes(old, next)
		if len(changes) == 0 {
			return out, nil
		}
		results, err := dynamo.Transact(ctx, s.client, rand.Text(), changes...)
		if err != nil {
			return quota.Outcome{}, err
		}
		if results[0].Applied {
			return out, nil
		}
		if err := pause(ctx); err != nil {
			return quota.Outcome{}, err
		}
	}
	return quota.Outcome{}, errContended
}

// pause lets whoever was faster finish.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", keytype.ErrUnavailable, ctx.Err()) // every transaction so far was refused
	case <-time.After(mathrand.N(maxPause)): //nolint:gosec // no secret: two processes draw different ones
		return nil
	}
}

func fault(op string, id quota.ID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q of %q: %w", op, id.Name, id.Subject, err)
}
