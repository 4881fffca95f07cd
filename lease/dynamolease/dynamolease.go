// Package dynamolease decides with DynamoDB who may work on a resource: it is a
// lease.Store whose every step is one conditional UpdateItem.
//
// A condition says what the transition of package lease says. Where it fails, the
// transition itself decides from the item that the failed condition returns.
package dynamolease

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/lease"
)

// format is the item's. The fencing adapter writes the same one.
const format = 1

// maxRounds bounds the requests of one call. Each further round needs that others
// moved the item between two requests of this call.
const maxRounds = 8

// Attributes of a resource's item. The fencing adapter owns mark and what belongs to it.
const (
	fence      = "fence" // the newest token handed out, which is the latest grant's
	mark       = "mark"  // the largest token admitted
	leaseID    = "lease_id"
	owner      = "owner"
	requestID  = "request_id" // absent where the grant has none
	acquired   = "acquired"   // this and the other instants: Unix milliseconds
	expires    = "expires"
	maxExpires = "max_expires"
	released   = "released"
	ownerKey   = "owner_key" // tenant and owner, absent once released: the index's key
	forced     = "forced"    // request id of the forced release, absent where there was none
	data       = "data"      // JSON, absent where the grant has none
	set        = "set"       // what stands for the set of the grant, absent where it was granted by itself
)

// errContended says that nothing was written in maxRounds.
var errContended = fmt.Errorf("dynamolease: others are always faster: %w", keytype.ErrUnavailable)

// client is what the store uses of a *dynamodb.Client.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
	BatchGetItem(context.Context, *dynamodb.BatchGetItemInput, ...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
}

// Store is a lease.Store in DynamoDB.
type Store struct {
	client client
	table  string
	floor  *floor
}

// New makes a store over the table with the prefix.
func New(client client, prefix string) *Store {
	table := keytype.Lease.TableName(prefix)
	return &Store{client, table, newFloor(client, table)}
}

// Table describes the table of leases and marks. It has no TTL: an item that is
// removed takes the resource's newest token with it.
func Table(prefix string) dynamo.Table {
	return dynamo.Table{Name: keytype.Lease.TableName(prefix), PartitionKey: "pk", Indexes: []dynamo.Index{byOwner}}
}

// Acquire implements lease.Store.
func (s *Store) Acquire(ctx context.Context, tenant, resource string, req lease.Acquire) (lease.Outcome, error) {
	out, err := s.acquire(ctx, tenant, resource, req)
	if err != nil {
		return lease.Outcome{}, fmt.Errorf("acquire %q: %w", resource, err)
	}
	return out, nil
}

func (s *Store) acquire(ctx context.Context, tenant, resource string, req lease.Acquire) (lease.Outcome, error) {
	if late := !req.NotAfter.IsZero() && req.Now.After(req.NotAfter); late {
		return s.tooLate(ctx, tenant, resource, req)
	}
	floor, err := s.floor.get(ctx)
	if err != nil {
		return lease.Outcome{}, err
	}
	fence := fencing.State{Floor: floor} // as last seen
	for range maxRounds {
		got, err := s.update(ctx, s.grant(tenant, resource, req, fence))
		if err != nil {
			return lease.Outcome{}, err
		}
		if got.Applied {
			return lease.Outcome{Verdict: lease.Done, State: got.lease}, nil
		}
		fence = got.fence
		fence.Floor = floor
		next, out := got.lease.Acquire(fence, req)
		if next == got.lease {
			return got.answer(out)
		}
	}
	return lease.Outcome{}, errContended
}

// tooLate is a request that nothing can come of any more: it only reads, for it may
// repeat one whose grant is live.
func (s *Store) tooLate(ctx context.Context, tenant, resource string, req lease.Acquire) (lease.Outcome, error) {
	state, err := s.Get(ctx, tenant, resource)
	if err != nil {
		return lease.Outcome{}, err
	}
	_, out := state.Acquire(fencing.State{}, req)
	return out, nil
}

// Renew implements lease.Store. UpdateItem cannot take the larger or the smaller
// of two values: the condition demands that the new expiry is right as it stands,
// and the transition says which one is where it is not.
func (s *Store) Renew(ctx context.Context, tenant, resource string, req lease.Renew) (lease.Outcome, error) {
	out, err := s.renew(ctx, tenant, resource, req)
	if err != nil {
		return lease.Outcome{}, fmt.Errorf("renew %q: %w", resource, err)
	}
	return out, nil
}

func (s *Store) renew(ctx context.Context, tenant, resource string, req lease.Renew) (lease.Outcome, error) {
	to := req.Now.Add(req.TTL)
	for range maxRounds {
		got, err := s.update(ctx, s.extend(tenant, resource, req, to))
		if err != nil {
			return lease.Outcome{}, err
		}
		if got.Applied {
			return lease.Outcome{Verdict: lease.Done, State: got.lease}, nil
		}
		next, out := got.lease.Renew(req)
		if next == got.lease {
			return got.answer(out)
		}
		to = next.ExpiresAt
	}
	return lease.Outcome{}, errContended
}

// Release implements lease.Store.
func (s *Store) Release(ctx context.Context, tenant, resource string, holder lease.Holder) (lease.Outcome, error) {
	out, err := s.release(ctx, tenant, resource, holder)
	if err != nil {
		return lease.Outcome{}, fmt.Errorf("release %q: %w", resource, err)
	}
	return out, nil
}

func (s *Store) release(ctx context.Context, tenant, resource string, holder lease.Holder) (lease.Outcome, error) {
	got, err := s.update(ctx, s.end(tenant, resource, holder))
	if err != nil {
		return lease.Outcome{}, err
	}
	if got.Applied {
		return lease.Outcome{Verdict: lease.Done, State: got.lease}, nil
	}
	_, out := got.lease.Release(holder) // a grant that is not the latest never is again
	return got.answer(out)
}

// Force implements lease.Store.
func (s *Store) Force(ctx context.Context, tenant, resource string, req lease.Force) (lease.Outcome, error) {
	out, err := s.forceRelease(ctx, tenant, resource, req)
	if err != nil {
		return lease.Outcome{}, fmt.Errorf("force %q: %w", resource, err)
	}
	return out, nil
}

func (s *Store) forceRelease(ctx context.Context, tenant, resource string, req lease.Force) (lease.Outcome, error) {
	floor, err := s.floor.get(ctx)
	if err != nil {
		return lease.Outcome{}, err
	}
	for range maxRounds {
		got, err := s.update(ctx, s.force(tenant, resource, req, floor))
		if err != nil {
			return lease.Outcome{}, err
		}
		if got.Applied {
			return lease.Outcome{Verdict: lease.Done, State: got.lease}, nil
		}
		got.fence.Floor = floor
		next, out := got.lease.Force(got.fence, req)
		if next == got.lease {
			return got.answer(out)
		}
	}
	return lease.Outcome{}, errContended
}

// Get implements lease.Store.
func (s *Store) Get(ctx context.Context, tenant, resource string) (lease.State, error) {
	item, err := dynamo.Get(ctx, s.client, s.table, key(tenant, resource))
	if err != nil {
		return lease.State{}, fmt.Errorf("get %q: %w", resource, err)
	}
	state, _, err := read(item)
	if err != nil {
		return lease.State{}, fmt.Errorf("get %q: %w: %w", resource, keytype.ErrUnavailable, err)
	}
	return state, nil
}

// seen is a result with its item taken apart.
type seen struct {
	dynamo.Result
	lease lease.State
	fence fencing.State
}

func (s *Store) update(ctx context.Context, c dynamo.Change) (seen, error) {
	result, err := dynamo.Update(ctx, s.client, c)
	if err != nil {
		return seen{}, err
	}
	state, fence, err := read(result.Item)
	if err != nil {
		return seen{}, result.Unreadable(err)
	}
	return seen{result, state, fence}, nil
}

// answer hands out what the transition decided. A refusal needs that no earlier
// try of the same call has had an effect.
func (s seen) answer(out lease.Outcome) (lease.Outcome, error) {
	if out.Verdict == lease.Done {
		return out, nil
	}
	if err := s.Sure(); err != nil {
		return lease.Outcome{}, err
	}
	return out, nil
}
