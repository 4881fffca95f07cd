package dynamosession_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/dynamo/dynamotest"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/session"
	"github.com/coordsvc/coordsvc/session/dynamosession"
)

// A bench is a manager whose requests go over a wire, and one beside it, of
// another caller, whose requests do not.
type bench struct {
	*testing.T
	wire   *dynamotest.Wire
	m      *session.Manager
	others *session.Manager
	store  *dynamosession.Store // over the wire
	now    time.Time
}

func newBench(t *testing.T) *bench {
	e := engine.DynamoDB(t)
	b := &bench{T: t, wire: &dynamotest.Wire{}, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	prefix := e.Prefix(t)
	if err := dynamo.Create(t.Context(), e.Client(), dynamosession.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	b.store = dynamosession.New(e.Client(b.wire.Option), prefix)
	options := session.Options{RouteKey: make([]byte, 32), Now: func() time.Time { return b.now }}
	b.m, b.others = session.New(b.store, options), session.New(dynamosession.New(e.Client(), prefix), options)
	return b
}

func (b *bench) login(req session.CreateRequest) (string, session.Session) {
	b.Helper()
	req.UserID = "ann"
	token, s, err := b.m.Create(b.Context(), "t", req)
	if err != nil {
		b.Fatal(err)
	}
	return token.Reveal(), s
}

func (b *bench) look(token string) session.Reason {
	b.Helper()
	v, err := b.others.Verify(b.Context(), "t", token, session.VerifyRequest{NoTouch: true})
	if err != nil {
		b.Error(err)
	}
	return v.Reason
}

// sent demands which requests went over the wire since it was last called. Every
// read among them must be consistent, and every attribute aliased.
func (b *bench) sent(why string, want ...string) {
	b.Helper()
	var got []string
	for _, r := range b.wire.Take() {
		got = append(got, r.Operation)
		if reads := r.Operation == "GetItem" || r.Operation == "Query"; reads && r.Body["ConsistentRead"] != true {
			b.Errorf("%s: %s may read what is old", why, r.Operation)
		}
		if bare := r.BareNames(); len(bare) > 0 {
			b.Errorf("%s: %s names %v plainly", why, r.Operation, bare)
		}
	}
	if !slices.Equal(got, want) {
		b.Errorf("%s: sent %v, want %v", why, got, want)
	}
}

func TestL35RequestsPerOperation(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	do := func(why string, err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", why, err)
		}
		b.sent(why, want...)
	}
	token, s := b.login(session.CreateRequest{})
	b.sent("create", "GetItem", "TransactWriteItems")
	_, limited := b.login(session.CreateRequest{MaxSessions: 9, Data: []byte(`1`)})
	b.sent("create with a limit", "GetItem", "Query", "TransactWriteItems")
	do("verify", second(b.m.Verify(ctx, "t", token, session.VerifyRequest{})), "GetItem", "GetItem")
	b.now = b.now.Add(6 * time.Minute)
	do("verify with a use to record", second(b.m.Verify(ctx, "t", token, session.VerifyRequest{})), "GetItem", "GetItem", "UpdateItem")
	r, err := b.m.Rotate(ctx, "t", token, session.RotateRequest{})
	do("rotate", err, "GetItem", "GetItem", "TransactWriteItems")
	token = r.Token.Reveal()
	do("read data", second(b.m.Data(ctx, "t", limited.Handle)), "GetItem", "GetItem", "GetItem")
	do("write data", second(b.m.SetData(ctx, "t", limited.Handle, 1, []byte(`2`))), "GetItem", "GetItem", "GetItem", "TransactWriteItems")
	do("get", second(b.m.Get(ctx, "t", s.Handle)), "GetItem", "GetItem")
	do("list", second(b.m.List(ctx, "t", "ann", "", 0)), "GetItem", "Query")
	do("epochs", second(b.m.Epochs(ctx, "t", "ann")), "GetItem")
	do("logout-all but one", second(b.m.LogoutAll(ctx, "t", "ann", token)), "GetItem", "GetItem", "TransactWriteItems")
	do("revoke", second(b.m.Revoke(ctx, "t", token)), "GetItem", "GetItem", "TransactWriteItems")
	do("revoke again", second(b.m.Revoke(ctx, "t", token)), "GetItem", "GetItem")
	do("logout-all", second(b.m.LogoutAll(ctx, "t", "ann", "")), "UpdateItem")
	do("permission epoch", second(b.m.BumpPermissions(ctx, "t", "ann")), "UpdateItem")
	do("disable", second(b.m.Disable(ctx, "t", "ann")), "UpdateItem")
	do("enable", second(b.m.Enable(ctx, "t", "ann")), "UpdateItem")
}

func second[T any](_ T, err error) error { return err }

// A page is found among many dead sessions in few requests, and is none the shorter.
func TestPageAmongDeadSessions(t *testing.T) {
	b := newBench(t)
	live := map[string]bool{}
	for i := range 60 {
		token, s := b.login(session.CreateRequest{})
		if i == 20 || i == 40 {
			live[s.Handle] = true
			continue
		}
		if _, err := b.m.Revoke(t.Context(), "t", token); err != nil {
			t.Fatal(err)
		}
	}
	b.wire.Take()
	cursor, most := "", 0
	for pages := 0; pages == 0 || cursor != ""; pages++ {
		page, err := b.m.List(t.Context(), "t", "ann", cursor, 1)
		if err != nil || len(page.Sessions) != 1 || !live[page.Sessions[0].Handle] {
			t.Fatalf("%+v, %v", page, err)
		}
		delete(live, page.Sessions[0].Handle)
		cursor, most = page.Next, max(most, len(b.wire.Take()))
	}
	if len(live) > 0 || most > 3 { // the user's record and two queries
		t.Errorf("%d are missing, a page took %d requests", len(live), most)
	}
}

// S14, S34: whatever the number of sessions, logout-all finds none of them and is one
// write, or one transaction of two items with a session to keep.
func TestS14S34LogoutAllOfManySessions(t *testing.T) {
	b := newBench(t)
	tokens := make([]string, many())
	var logins sync.WaitGroup
	for worker := range 8 {
		logins.Go(func() {
			for i := worker; i < len(tokens); i += 8 {
				token, _, err := b.others.Create(t.Context(), "t", session.CreateRequest{UserID: "ann"})
				if err != nil {
					t.Error(err)
				}
				tokens[i] = token.Reveal()
			}
		})
	}
	logins.Wait()
	listed := b.list()
	if len(listed) != len(tokens) || !slices.IsSorted(listed) || len(slices.Compact(listed)) != len(tokens) {
		t.Errorf("%d sessions of %d are listed, in order %v", len(listed), len(tokens), slices.IsSorted(listed))
	}
	b.wire.Take()
	if _, err := b.m.LogoutAll(t.Context(), "t", "ann", tokens[7]); err != nil {
		t.Fatal(err)
	}
	requests := b.wire.Take()
	if items, _ := requests[len(requests)-1].Body["TransactItems"].([]any); len(items) != 2 || len(requests) != 3 {
		t.Errorf("%d requests, and %d items for a logout-all that keeps one", len(requests), len(items))
	}
	if b.look(tokens[7]) != "" || b.look(tokens[8]) != session.Epoch {
		t.Error("another session than the named one was kept")
	}
	if _, err := b.m.LogoutAll(t.Context(), "t", "ann", ""); err != nil {
		t.Fatal(err)
	}
	b.sent("logout-all", "UpdateItem")
	for i := 0; i < len(tokens); i += len(tokens) / 50 {
		if b.look(tokens[i]) != session.Epoch {
			t.Error("a session survived")
		}
	}
	t.Logf("%d sessions", len(tokens))
}

// many is how many sessions a user has who has many.
func many() int {
	if text, _ := os.LookupEnv("COORD_TEST_DEPTH"); text == "proof" {
		return 10_000
	}
	return 200
}

// list reads the handles of all pages.
func (b *bench) list() (handles []string) {
	b.Helper()
	for cursor := ""; ; {
		page, err := b.m.List(b.Context(), "t", "ann", cursor, 0)
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range page.Sessions {
			handles = append(handles, s.Handle)
		}
		if cursor = page.Next; cursor == "" {
			return handles
		}
	}
}

// L53: a change whose answer was lost is made once, and its outcome is known.
func TestL53LostAnswers(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	b.login(session.CreateRequest{})
	for _, c := range []struct {
		why    string
		change func() (session.Changed, error)
		want   session.Epochs
	}{
		{"logout-all", func() (session.Changed, error) { return b.m.LogoutAll(ctx, "t", "ann", "") }, session.Epochs{SessionVersion: 2, PermissionEpoch: 1}},
		{"permissions", func() (session.Changed, error) { return b.m.BumpPermissions(ctx, "t", "ann") }, session.Epochs{SessionVersion: 2, PermissionEpoch: 2}},
		{"disable", func() (session.Changed, error) { return b.m.Disable(ctx, "t", "ann") }, session.Epochs{SessionVersion: 2, PermissionEpoch: 2, Disabled: true}},
		{"enable", func() (session.Changed, error) { return b.m.Enable(ctx, "t", "ann") }, session.Epochs{SessionVersion: 3, PermissionEpoch: 2}},
	} {
		b.wire.LoseReplies(1, nil)
		if got, err := c.change(); err != nil || got.Epochs != c.want {
			t.Errorf("%s: %+v, %v", c.why, got.Epochs, err)
		}
	}
	b.wire.LoseReplies(1, nil)
	token, s := b.login(session.CreateRequest{MaxSessions: 1, Data: []byte(`1`)})
	if got := b.look(token); got != "" {
		t.Errorf("created: %q", got)
	}
	b.wire.LoseReplies(1, nil)
	r, err := b.m.Rotate(ctx, "t", token, session.RotateRequest{})
	if err != nil || b.look(r.Token.Reveal()) != "" {
		t.Fatalf("rotate: %v", err)
	}
	b.wire.LoseReplies(1, nil)
	if version, err := b.m.SetData(ctx, "t", s.Handle, 1, []byte(`2`)); err != nil || version != 2 {
		t.Errorf("write data: %d, %v", version, err)
	}
	b.wire.LoseReplies(1, nil)
	if kept, err := b.m.LogoutAll(ctx, "t", "ann", r.Token.Reveal()); err != nil || kept.SessionVersion != 4 {
		t.Errorf("keep: %+v, %v", kept, err)
	}
	b.wire.LoseReplies(1, nil)
	if _, err := b.m.Revoke(ctx, "t", r.Token.Reveal()); err != nil || b.look(r.Token.Reveal()) != session.Revoked {
		t.Errorf("revoke: %v", err)
	}
	b.wire.LoseReplies(1, func() {
		if _, err := b.others.BumpPermissions(context.WithoutCancel(ctx), "t", "ann"); err != nil {
			t.Error(err)
		}
	})
	if _, err := b.m.Enable(ctx, "t", "ann"); !errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("a lost change behind another: %v", err)
	}
	b.wire.LoseReplies(9, nil)
	if _, err := b.m.Revoke(ctx, "t", token); err != nil {
		t.Errorf("a revocation that finds nothing to do: %v", err)
	}
}

// L31, L32: a conflict is tried again under the same token, a throttled write had no
// effect, and a failed condition is read from the cancellation's reasons.
func TestL31L32Cancellations(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	b.login(session.CreateRequest{})
	b.wire.Take()
	b.wire.Cancel("TransactionConflict", "None")
	token, _ := b.login(session.CreateRequest{})
	requests := b.wire.Take()
	if len(requests) != 3 || requests[1].Body["ClientRequestToken"] != requests[2].Body["ClientRequestToken"] {
		t.Errorf("a conflict was followed by %d requests in all, under another token", len(requests))
	}
	b.wire.Refuse(9)
	if _, err := b.m.Revoke(ctx, "t", token); !errors.Is(err, keytype.ErrUnavailable) || errors.Is(err, keytype.ErrOutcomeUnknown) {
		t.Errorf("throttled: %v", err)
	}
	b.wire.Refuse(0)
	if b.look(token) != "" {
		t.Error("a revocation that had no effect had one")
	}
	// A logout-all between what a call reads and what it writes.
	for _, c := range []struct {
		why string
		do  func() error
	}{
		{"create", func() error {
			expected := int64(1)
			return second3(b.m.Create(ctx, "t", session.CreateRequest{UserID: "ann", ExpectedVersion: &expected}))
		}},
		{"rotate", func() error { return second(b.m.Rotate(ctx, "t", token, session.RotateRequest{})) }},
		{"keep", func() error { return second(b.m.LogoutAll(ctx, "t", "ann", token)) }},
	} {
		if c.why != "create" {
			token, _ = b.login(session.CreateRequest{})
		}
		b.wire.BeforeWrite(1, func() {
			if _, err := b.others.LogoutAll(context.WithoutCancel(ctx), "t", "ann", ""); err != nil {
				t.Error(err)
			}
		})
		if err := c.do(); !errors.Is(err, session.ErrEpochMismatch) && !errors.Is(err, session.ErrNotActive) {
			t.Errorf("%s overtaken by a logout-all: %v", c.why, err)
		}
	}
}

func second3[A, B any](_ A, _ B, err error) error { return err }

// A pausing client calls between once, after the first read.
type pausing struct {
	*dynamodb.Client
	between func()
}

func (p *pausing) GetItem(ctx context.Context, in *dynamodb.GetItemInput, o ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	out, err := p.Client.GetItem(ctx, in, o...)
	if between := p.between; between != nil {
		p.between = nil
		between()
	}
	return out, err
}

// S12: a session is not judged by a user's record that was read before a change which
// the session already shows.
func TestS12LoadReadsTheUserAgain(t *testing.T) {
	e := engine.DynamoDB(t)
	prefix := e.Prefix(t)
	if err := dynamo.Create(t.Context(), e.Client(), dynamosession.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	options := session.Options{RouteKey: make([]byte, 32)}
	others := session.New(dynamosession.New(e.Client(), prefix), options)
	token, s, err := others.Create(t.Context(), "t", session.CreateRequest{UserID: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	logout := func() {
		if _, err := others.LogoutAll(t.Context(), "t", "ann", token.Reveal()); err != nil {
			t.Error(err)
		}
	}
	overtaken := dynamosession.New(&pausing{e.Client(), logout}, prefix)
	u, r, err := overtaken.Load(t.Context(), session.Key{Tenant: "t", Tag: s.Handle[4:26], ID: s.Handle[26:]})
	if err != nil || u.SessionVersion != 2 || r.SessionVersion != 2 {
		t.Errorf("an old user beside a new session: %+v %+v %v", u, r, err)
	}
	m := session.New(dynamosession.New(&pausing{e.Client(), logout}, prefix), options)
	if page, err := m.List(t.Context(), "t", "ann", "", 0); err != nil || len(page.Sessions) != 1 {
		t.Errorf("the kept session is not listed: %+v %v", page, err)
	}
}

// S40: every item is of one of the three kinds, carries a format number, and no token.
func TestS38S40Items(t *testing.T) {
	e := engine.DynamoDB(t)
	prefix := e.Prefix(t)
	if err := dynamo.Create(t.Context(), e.Client(), dynamosession.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	store := dynamosession.New(e.Client(), prefix)
	m := session.New(store, session.Options{RouteKey: make([]byte, 32)})
	token, s, err := m.Create(t.Context(), "t", session.CreateRequest{UserID: "ann", AMR: []string{"pwd"}, Data: []byte(`{"a":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Rotate(t.Context(), "t", token.Reveal(), session.RotateRequest{AAL: 2})
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.Client().Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String(dynamosession.Table(prefix).Name)})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, item := range out.Items {
		reader := dynamo.Read(item, 1)
		pk, sk := reader.Str("pk"), reader.Str("sk")
		if reader.Err() != nil || pk != "U#"+s.Handle[4:26] {
			t.Errorf("%v: %v", item, reader.Err())
		}
		kinds[strings.TrimSuffix(sk, s.Handle[26:])]++
		if (sk != "E") != reader.Has("ttl") {
			t.Errorf("%s has a TTL: %v", sk, reader.Has("ttl"))
		}
	}
	if want := map[string]int{"E": 1, "S#": 1, "D#": 1}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("items %v, want %v", kinds, want)
	}
	raw, err := json.Marshal(out.Items)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{token.Reveal()[48:68], r.Token.Reveal()[48:68]} {
		if strings.Contains(string(raw), secret) {
			t.Error("a secret is stored")
		}
	}
}
