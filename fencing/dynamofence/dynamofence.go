// Package dynamofence decides with DynamoDB whether a writer may still write: it is
// a fencing.Store whose every step is one conditional UpdateItem, or one transaction
// where it depends on the lease too. [Condition] and [Held] put the same into a
// caller's own writes.
package dynamofence

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// format is that of both items. The lease adapter writes the same one.
const format = 1

// maxRounds bounds the requests of one call. Each further round needs that other
// writers moved the item between two requests of this call.
const maxRounds = 8

// Attributes of a resource's item, of which the lease adapter owns the others
// and writes granted.
const (
	granted   = "fence"     // the newest token handed out, absent = never leased
	markToken = "mark"      // the mark's token, absent = nothing admitted
	markSeq   = "seq"       // the mark's sequence, if seq_token is the mark's token, else it is 0
	seqToken  = "seq_token" // the token that seq belongs to
	leaseID   = "lease_id"  // the lease adapter's: the newest grant
	released  = "released"  // the lease adapter's: whether it has ended
)

// Attributes of a protected record's item.
const (
	token    = "token"
	sequence = "sequence"
	value    = "value" // compact JSON
	version  = "version"
	mode     = "mode"
	writeID  = "write_id" // of the latest write
)

// client is what the store uses of a *dynamodb.Client.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
}

// Store is a fencing.Store in DynamoDB.
type Store struct {
	client  client
	marks   string // table of the resources' items
	records string
}

// New makes a store over the tables with the prefix.
func New(client client, prefix string) *Store {
	return &Store{client, keytype.Fence.TableName(prefix), keytype.ProtectedRecord.TableName(prefix)}
}

// Table describes the table of protected records. Marks live in the leases' table.
func Table(prefix string) dynamo.Table {
	return dynamo.Table{Name: keytype.ProtectedRecord.TableName(prefix), PartitionKey: "pk"}
}

// Admit implements fencing.Store. Its condition says what fencing.State.Admit
// does. UpdateItem cannot choose what to set, so a larger token leaves the old
// sequence in place, which then belongs to another token and counts as 0.
func (s *Store) Admit(ctx context.Context, tenant, resource string, at fencing.Position) (fencing.Admission, error) {
	a, err := s.admit(ctx, dynamo.Change{
		Table:     s.marks,
		Key:       dynamo.Item{"pk": dynamo.S(keytype.Fence.Key(tenant, resource))},
		Format:    format,
		Set:       "#mark = :token",
		Condition: "(attribute_not_exists(#fence) OR #fence >= :token) AND (attribute_not_exists(#mark) OR #mark <= :token)",
		Values:    dynamo.Item{":token": dynamo.N(at.Token)},
	}, at)
	if err != nil {
		return fencing.Admission{}, fmt.Errorf("admit to %q: %w", resource, err)
	}
	return a, nil
}

func (s *Store) admit(ctx context.Context, c dynamo.Change, at fencing.Position) (fencing.Admission, error) {
	if at.Sequence > 0 {
		c.Set += ", #seq = :seq, #seq_token = :token"
		c.Condition += " AND (attribute_not_exists(#seq_token) OR #seq_token < :token OR #seq <= :seq)"
		c.Values[":seq"] = dynamo.N(at.Sequence)
	}
	for range maxRounds {
		result, err := dynamo.Update(ctx, s.client, c)
		if err != nil {
			return fencing.Admission{}, err
		}
		state, err := readState(result.Item)
		if err != nil {
			return fencing.Admission{}, result.Unreadable(err)
		}
		if result.Applied {
			return fencing.Admission{Verdict: fencing.Accepted, Mark: state.Mark}, nil
		}
		if _, a := state.Admit(at); a.Verdict != fencing.Accepted {
			return a, result.Sure()
		}
	}
	return fencing.Admission{}, errContended
}

// ResetMark implements fencing.Store. It is not sent twice: an admission between the
// two would be undone.
func (s *Store) ResetMark(ctx context.Context, tenant, resource string, to fencing.Token) (fencing.Admission, error) {
	a, err := s.resetMark(ctx, dynamo.Change{
		Table:     s.marks,
		Key:       dynamo.Item{"pk": dynamo.S(keytype.Fence.Key(tenant, resource))},
		Format:    format,
		Set:       "#mark = :token",
		Remove:    "#seq, #seq_token",
		Condition: "attribute_exists(#mark) AND (attribute_not_exists(#fence) OR #fence >= :token)",
		Values:    dynamo.Item{":token": dynamo.N(to)},
		Once:      true,
	}, to)
	if err != nil {
		return fencing.Admission{}, fmt.Errorf("reset mark of %q: %w", resource, err)
	}
	return a, nil
}

func (s *Store) resetMark(ctx context.Context, c dynamo.Change, to fencing.Token) (fencing.Admission, error) {
	for range maxRounds {
		result, err := dynamo.Update(ctx, s.client, c)
		if err != nil {
			return fencing.Admission{}, err
		}
		state, err := readState(result.Item)
		if err != nil {
			return fencing.Admission{}, result.Unreadable(err)
		}
		if result.Applied {
			return fencing.Admission{Verdict: fencing.Accepted, Mark: state.Mark}, nil
		}
		if err := result.Sure(); err != nil {
			return fencing.Admission{}, err
		}
		if _, a := state.Reset(to); a.Verdict != fencing.Accepted {
			return a, nil
		}
	}
	return fencing.Admission{}, errContended
}

// errContended says that nothing was written in maxRounds.
var errContended = fmt.Errorf("dynamofence: other writers are always faster: %w", keytype.ErrUnavailable)

// Mark implements fencing.Store.
func (s *Store) Mark(ctx context.Context, tenant, resource string) (fencing.Position, error) {
	item, err := dynamo.Get(ctx, s.client, s.marks, dynamo.Item{"pk": dynamo.S(keytype.Fence.Key(tenant, resource))})
	if err != nil {
		return fencing.Position{}, fmt.Errorf("read mark of %q: %w", resource, err)
	}
	state, err := readState(item)
	if err != nil {
		return fencing.Position{}, fmt.Errorf("read mark of %q: %w: %w", resource, keytype.ErrUnavailable, err)
	}
	return state.Mark, nil
}

func readState(item dynamo.Item) (fencing.State, error) {
	r := dynamo.Read(item, format)
	s := fencing.State{Granted: fencing.Token(r.Int(granted)), Mark: fencing.Position{Token: fencing.Token(r.Int(markToken))}}
	if fencing.Token(r.Int(seqToken)) == s.Mark.Token {
		s.Mark.Sequence = r.Int(markSeq)
	}
	if !r.Bool(released) {
		s.Holder = r.Str(leaseID)
	}
	return s, r.Err()
}
