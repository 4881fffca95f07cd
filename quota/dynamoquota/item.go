package dynamoquota

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/quota"
)

// format is that of all items.
const format = 1

// Attributes. An instant that is absent is the zero one.
const (
	writes = "writes" // how often the item was written: what a transaction compares
	ttl    = "ttl"    // the second after which DynamoDB may remove the item

	window, zone, limit, revision          = "window", "zone", "limit", "revision" // of a setting, and of an account
	frame, ends, available, reserved, used = "frame", "ends", "available", "reserved", "used"

	amount, reservation, reservedUntil, kept = "amount", "reservation", "reserved_until", "kept" // of a receipt
	left                                     = "left"                                            // the account as the step left it, in JSON

	reservationID, expires, phase = "id", "expires", "phase" // of a reservation, with frame, amount, used, left and kept
	due, dueShard                 = "due", "due_shard"       // of an active one: what the index sorts by
)

// byDue is the index of active reservations, spread over some partitions.
const (
	byDue     = "by_due"
	dueShards = 4
)

type tables struct{ quotas, reservations, receipts string }

func tablesOf(prefix string) tables {
	return tables{keytype.Quota.TableName(prefix), keytype.QuotaReservation.TableName(prefix), keytype.QuotaReceipt.TableName(prefix)}
}

// Tables describes the tables of quotas, reservations and receipts.
func Tables(prefix string) []dynamo.Table {
	t := tablesOf(prefix)
	return []dynamo.Table{
		{Name: t.quotas, PartitionKey: "pk", TTL: ttl},
		{
			Name: t.reservations, PartitionKey: "pk", TTL: ttl,
			Indexes: []dynamo.Index{{Name: byDue, PartitionKey: dueShard, SortKey: due}},
		},
		{Name: t.receipts, PartitionKey: "pk", TTL: ttl},
	}
}

// A view is a state as read, with how often each of its items was written, 0 for
// one that is not there.
type view struct {
	quota.State
	id        quota.ID
	requestID string

	setting, account, receipt, reservation int64
}

// readCurrent reads what a step in the current window concerns, but for the receipt.
func (s *Store) readCurrent(ctx context.Context, id quota.ID, now time.Time) (view, error) {
	v, err := s.readSetting(ctx, id)
	if err != nil || v.Setting.Revision == 0 {
		return v, err
	}
	return v, s.readAccount(ctx, &v, v.Setting.Definition, now)
}

func (s *Store) readSetting(ctx context.Context, id quota.ID) (view, error) {
	v := view{id: id}
	r, err := s.get(ctx, s.tables.quotas, v.accountKey(""))
	if err != nil {
		return v, err
	}
	v.setting = r.Int(writes)
	v.Setting = quota.Setting{
		Definition: quota.Definition{Limit: r.Int(limit), Window: quota.Window(r.Str(window)), Zone: r.Str(zone)},
		Revision:   r.Int(revision),
	}
	return v, damage(r.Err())
}

// readAccount reads the account of the window that the definition has now.
func (s *Store) readAccount(ctx context.Context, v *view, d quota.Definition, now time.Time) (err error) {
	if v.Frame, err = d.Frame(now); err != nil {
		return err
	}
	return s.readFrame(ctx, v, v.Frame.ID)
}

func (s *Store) readFrame(ctx context.Context, v *view, id string) error {
	r, err := s.get(ctx, s.tables.quotas, v.accountKey(id))
	if err != nil {
		return err
	}
	v.account = r.Int(writes)
	v.Account = quota.Account{
		Frame:    quota.Frame{ID: r.Str(frame), Window: quota.Window(r.Str(window)), Zone: r.Str(zone), Ends: instant(r, ends)},
		Revision: r.Int(revision), Limit: r.Int(limit),
		Available: r.Int(available), Reserved: r.Int(reserved), Used: r.Int(used),
	}
	return damage(r.Err())
}

func (s *Store) readReceipt(ctx context.Context, v *view) error {
	r, err := s.get(ctx, s.tables.receipts, v.receiptKey())
	if err != nil {
		return err
	}
	v.receipt = r.Int(writes)
	v.Receipt = quota.Receipt{
		Amount: r.Int(amount), Reservation: r.Str(reservation),
		ReservedUntil: instant(r, reservedUntil), Kept: instant(r, kept),
	}
	v.Receipt.Account, err = leftAs(r)
	return damage(err)
}

// readReservation reads a reservation and the account of its window.
func (s *Store) readReservation(ctx context.Context, id quota.ID, name string) (view, error) {
	v := view{id: id}
	r, err := s.get(ctx, s.tables.reservations, v.reservationKey(name))
	if err != nil {
		return v, err
	}
	v.reservation = r.Int(writes)
	v.Reservation = quota.Reservation{
		ID: r.Str(reservationID), Frame: r.Str(frame), Amount: r.Int(amount), Expires: instant(r, expires),
		Phase: quota.Phase(r.Int(phase)), Used: r.Int(used), Kept: instant(r, kept),
	}
	v.Reservation.Account, err = leftAs(r)
	if err != nil || v.reservation == 0 {
		return v, damage(err)
	}
	return v, s.readFrame(ctx, &v, v.Reservation.Frame)
}

func (s *Store) get(ctx context.Context, table string, key dynamo.Item) (*dynamo.Reader, error) {
	item, err := dynamo.Get(ctx, s.client, table, key)
	if err != nil {
		return nil, err
	}
	return dynamo.Read(item, format), nil
}

// leftAs reads the account that a step left, and returns the reader's error.
func leftAs(r *dynamo.Reader) (a quota.Account, err error) {
	if err := r.Err(); err != nil || !r.Has(left) {
		return a, err
	}
	return a, json.Unmarshal([]byte(r.Str(left)), &a)
}

// damage is the fault of an item that cannot be read: nothing is decided on it.
func damage(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", keytype.ErrUnavailable, err)
}

// changes are what the step writes, each on condition that its item is as it was
// read; and a check of the setting, where one was read and stays as it is.
func (s *Store) changes(v view, next quota.State) (all []dynamo.Change) {
	if a := next.Account; a != v.Account {
		all = append(all, replace(s.tables.quotas, v.accountKey(a.ID), v.account, dynamo.Item{
			frame: dynamo.S(a.ID), window: dynamo.S(string(a.Window)), zone: dynamo.S(a.Zone), ends: millis(a.Ends),
			revision: dynamo.N(a.Revision), limit: dynamo.N(a.Limit),
			available: dynamo.N(a.Available), reserved: dynamo.N(a.Reserved), used: dynamo.N(a.Used), ttl: seconds(a.Gone()),
		}))
	}
	if r := next.Receipt; r != v.Receipt {
		v.Frame.ID = next.Account.ID
		all = append(all, replace(s.tables.receipts, v.receiptKey(), v.receipt, dynamo.Item{
			amount: dynamo.N(r.Amount), reservation: dynamo.S(r.Reservation), reservedUntil: millis(r.ReservedUntil),
			left: text(r.Account), kept: millis(r.Kept), ttl: seconds(r.Kept),
		}))
	}
	if r := next.Reservation; r != v.Reservation {
		all = append(all, replace(s.tables.reservations, v.reservationKey(r.ID), v.reservation, reservationItem(r)))
	}
	switch d := next.Setting; {
	case d != v.Setting:
		all = append(all, replace(s.tables.quotas, v.accountKey(""), v.setting, dynamo.Item{
			window: dynamo.S(string(d.Window)), zone: dynamo.S(d.Zone), limit: dynamo.N(d.Limit), revision: dynamo.N(d.Revision),
		}))
	case len(all) > 0 && v.setting > 0:
		all = append(all, check(s.tables.quotas, v.accountKey(""), v.setting))
	}
	return all
}

// reservationItem is in the index while it is active.
func reservationItem(r quota.Reservation) dynamo.Item {
	item := dynamo.Item{
		reservationID: dynamo.S(r.ID), frame: dynamo.S(r.Frame), amount: dynamo.N(r.Amount), expires: millis(r.Expires),
		phase: dynamo.N(int64(r.Phase)), used: dynamo.N(r.Used), left: text(r.Account), kept: millis(r.Kept), ttl: seconds(r.Kept),
		due: nil, dueShard: nil,
	}
	if r.Phase == quota.Active {
		item[due], item[dueShard] = dynamo.S(dueAt(r.Expires)), dynamo.S(shardOf(r.ID))
	}
	return item
}

// replace writes all the attributes, and removes those that are nil, where the
// item was written as often as was seen.
func replace(table string, key dynamo.Item, seen int64, attributes dynamo.Item) dynamo.Change {
	c := check(table, key, seen)
	set, remove := []string{"#" + writes + " = :next"}, []string(nil)
	c.Values[":next"] = dynamo.N(seen + 1)
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if attributes[name] == nil {
			remove = append(remove, "#"+name)
			continue
		}
		set = append(set, "#"+name+" = :"+name)
		c.Values[":"+name] = attributes[name]
	}
	c.Set, c.Remove = strings.Join(set, ", "), strings.Join(remove, ", ")
	return c
}

// check demands that the item was written as often as was seen.
func check(table string, key dynamo.Item, seen int64) dynamo.Change {
	c := dynamo.Change{Table: table, Key: key, Format: format, Values: dynamo.Item{}, Condition: "attribute_not_exists(#" + writes + ")"}
	if seen > 0 {
		c.Condition = "#" + writes + " = :seen"
		c.Values[":seen"] = dynamo.N(seen)
	}
	return c
}

// accountKey is the key of a window's account, and with no window the setting's.
func (v view) accountKey(frame string) dynamo.Item {
	return pk(keytype.Quota.Key(v.id.Tenant, v.id.Name, v.id.Subject, frame))
}

func (v view) receiptKey() dynamo.Item {
	return pk(keytype.QuotaReceipt.Key(v.id.Tenant, v.id.Name, v.id.Subject, v.Frame.ID, v.requestID))
}

func (v view) reservationKey(name string) dynamo.Item {
	return pk(keytype.QuotaReservation.Key(v.id.Tenant, v.id.Name, v.id.Subject, name))
}

func pk(key string) dynamo.Item { return dynamo.Item{"pk": dynamo.S(key)} }

func instant(r *dynamo.Reader, name string) time.Time {
	if !r.Has(name) {
		return time.Time{}
	}
	return time.UnixMilli(r.Int(name)).UTC()
}

func millis(t time.Time) types.AttributeValue {
	if t.IsZero() {
		return nil
	}
	return dynamo.N(t.UnixMilli())
}

// seconds is the first full second that is not before t.
func seconds(t time.Time) types.AttributeValue {
	if t.IsZero() {
		return nil
	}
	return dynamo.N(t.Add(time.Second - 1).Unix())
}

func text(a quota.Account) types.AttributeValue {
	raw, err := json.Marshal(a)
	if err != nil {
		panic(err) // numbers, texts and an instant
	}
	return dynamo.S(string(raw))
}

// dueAt orders instants as texts of one length.
func dueAt(t time.Time) string { return fmt.Sprintf("%015d", t.UnixMilli()) }

func shardOf(reservation string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(reservation))
	return shard(int(h.Sum32() % dueShards))
}

func shard(n int) string { return fmt.Sprint(n) }
