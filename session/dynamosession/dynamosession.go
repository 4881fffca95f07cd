// Package dynamosession decides with DynamoDB whether a session is still good: it is
// a session.Durable over one table.
//
// A user has one partition: the item E with the user's numbers, an item S# for each
// session and an item D# for what is kept beside one. What is decided over several of
// them is read (E before S, strongly consistent), decided by the transition of package
// session, and written in one transaction whose conditions say that what the decision
// rests on is still as it was read. Where one fails, all is read and decided again.
package dynamosession

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
)

// maxRounds bounds how often one call decides. Each further round needs that others
// changed the same user meanwhile.
const maxRounds = 16

var (
	errContended = fmt.Errorf("dynamosession: others are always faster: %w", keytype.ErrUnavailable)
	errIDTaken   = fmt.Errorf("dynamosession: the new session's id is in use: %w", keytype.ErrUnavailable)
	// errTagTaken is met once in 2^64 users, or where two route keys wrote one table.
	errTagTaken = fmt.Errorf("dynamosession: the user's tag belongs to another user: %w", keytype.ErrUnavailable)
)

// atOnce is the propagation of a change where no cache lies between.
var atOnce = session.Propagation{Propagated: true}

// client is what the store uses of a *dynamodb.Client.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
	BatchWriteItem(context.Context, *dynamodb.BatchWriteItemInput, ...func(*dynamodb.Options)) (*dynamodb.BatchWriteItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
}

// Store is a session.Durable in DynamoDB. It knows of a session only the durable
// last use; see [session.DurableTracking].
type Store struct {
	client client
	table  string
}

// New makes a store over the table with the prefix.
func New(client client, prefix string) *Store {
	return &Store{client, keytype.Session.TableName(prefix)}
}

// Table describes the table of users and sessions. DynamoDB may remove a session's
// items after its absolute end; nothing relies on it.
func Table(prefix string) dynamo.Table {
	return dynamo.Table{Name: keytype.Session.TableName(prefix), PartitionKey: partition, SortKey: sort, TTL: ttl}
}

// Verify implements session.Store. It answers from what it read: a use that
// cannot be recorded is skipped.
func (s *Store) Verify(ctx context.Context, op session.VerifyOp) (session.Verdict, error) {
	u, r, err := s.Load(ctx, op.Key)
	if err != nil {
		return session.Verdict{}, fmt.Errorf("verify session: %w", err)
	}
	used, v := session.Verify(u, r, op, session.DurableTracking(r.Idle))
	if used.Seen == r.Seen {
		return v, nil
	}
	if recorded, err := s.touch(ctx, op.Key, used.Seen); err == nil && recorded {
		return v, nil
	}
	op.NoTouch = true
	_, v = session.Verify(u, r, op, session.DurableTracking(r.Idle))
	return v, nil
}

// Get implements session.Store.
func (s *Store) Get(ctx context.Context, op session.GetOp) (session.Session, session.Outcome, error) {
	u, r, err := s.Load(ctx, op.Key)
	if err != nil {
		return session.Session{}, 0, fmt.Errorf("get session: %w", err)
	}
	t := session.DurableTracking(r.Idle)
	if !session.Readable(u, r, op, t) {
		return session.Session{}, session.RefusedUnknown, nil
	}
	return r.Session(u, op.Key, t), session.Done, nil
}

// Epochs implements session.Store.
func (s *Store) Epochs(ctx context.Context, user session.UserKey) (session.Epochs, error) {
	u, err := s.loadUser(ctx, user)
	if err != nil {
		return session.Epochs{}, fmt.Errorf("read epochs: %w", err)
	}
	if u.Version == 0 {
		u = session.NewUser(user)
	}
	return u.Epochs(), nil
}

// ReadData implements session.Store.
func (s *Store) ReadData(ctx context.Context, op session.GetOp) (session.Data, session.Outcome, error) {
	u, r, err := s.Load(ctx, op.Key)
	if err != nil {
		return session.Data{}, 0, fmt.Errorf("read session data: %w", err)
	}
	if !session.Readable(u, r, op, session.DurableTracking(r.Idle)) {
		return session.Data{}, session.RefusedUnknown, nil
	}
	d, err := s.loadData(ctx, op.Key)
	if err != nil {
		return session.Data{}, 0, fmt.Errorf("read session data: %w", err)
	}
	return d, session.Done, nil
}

// Load implements session.Durable.
func (s *Store) Load(ctx context.Context, key session.Key) (session.User, session.Record, error) {
	for range maxRounds {
		u, err := s.LoadUser(ctx, key.Tag)
		if err != nil {
			return session.User{}, session.Record{}, err
		}
		item, err := s.get(ctx, recordKey(key))
		if err != nil {
			return session.User{}, session.Record{}, err
		}
		r, err := readRecord(item)
		if err != nil {
			return session.User{}, session.Record{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
		}
		if r.SessionVersion <= u.SessionVersion { // else this user's record is older than the session's
			return u, r, nil
		}
	}
	return session.User{}, session.Record{}, errContended
}

// LoadUser implements session.Durable.
func (s *Store) LoadUser(ctx context.Context, tag string) (session.User, error) {
	item, err := s.get(ctx, userKey(tag))
	if err != nil {
		return session.User{}, err
	}
	u, err := readUser(item)
	if err != nil {
		return session.User{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	return u, nil
}

// Touch implements session.Durable.
func (s *Store) Touch(ctx context.Context, key session.Key, seen int64) error {
	if _, err := s.touch(ctx, key, seen); err != nil {
		return fmt.Errorf("touch session: %w", err)
	}
	return nil
}

// touch reports whether the use, or a later one, is recorded of an active session.
func (s *Store) touch(ctx context.Context, key session.Key, used int64) (bool, error) {
	result, err := dynamo.Update(ctx, s.client, dynamo.Change{
		Table: s.table, Key: recordKey(key), Format: format,
		Set:       "#seen = :seen",
		Condition: "#state = :active AND #seen < :seen",
		Values:    dynamo.Item{":seen": dynamo.N(used), ":active": dynamo.S(session.StateActive)},
	})
	if err != nil || result.Applied {
		return result.Applied, err
	}
	r, err := readRecord(result.Item)
	return err == nil && r.State == session.StateActive && r.Seen >= used, err
}

// loadUser also refuses a record that belongs to somebody else.
func (s *Store) loadUser(ctx context.Context, user session.UserKey) (session.User, error) {
	u, err := s.LoadUser(ctx, user.Tag)
	if err == nil && u.Version > 0 && (u.Tenant != user.Tenant || u.User != user.User) {
		return session.User{}, errTagTaken
	}
	return u, err
}

func (s *Store) loadData(ctx context.Context, key session.Key) (session.Data, error) {
	item, err := s.get(ctx, dataKey(key))
	if err != nil {
		return session.Data{}, err
	}
	d, err := readData(item)
	if err != nil {
		return session.Data{}, fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
	}
	return d, nil
}

func (s *Store) get(ctx context.Context, key dynamo.Item) (dynamo.Item, error) {
	return dynamo.Get(ctx, s.client, s.table, key)
}

// transact reports whether the changes were made; where it returns false, conditions of the changes named failed.
func (s *Store) transact(ctx context.Context, changes ...dynamo.Change) (done bool, failed []bool, err error) {
	results, err := dynamo.Transact(ctx, s.client, newID(), changes...)
	if err != nil {
		return false, nil, err
	}
	done = true
	for _, result := range results {
		done = done && result.Applied
		failed = append(failed, result.Failed)
	}
	return done, failed, nil
}

// newID names one write, so that it is made once however often it is sent.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
