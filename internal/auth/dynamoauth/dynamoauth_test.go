package dynamoauth_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/auth/authtest"
	"github.com/coordsvc/coordsvc/internal/auth/dynamoauth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

const operatorText = "csk_written-by-an_operator"

// open makes an empty table and a store on it.
func open(t *testing.T, options ...func(*dynamodb.Options)) (store *dynamoauth.Store, client *dynamodb.Client, prefix string) {
	t.Helper()
	e := engine.DynamoDB(t)
	client, prefix = e.Client(), e.Prefix(t)
	if err := dynamo.Create(t.Context(), client, dynamoauth.Table(prefix)); err != nil {
		t.Fatal(err)
	}
	return dynamoauth.New(e.Client(options...), prefix), client, prefix
}

func TestDynamoStore(t *testing.T) {
	authtest.Run(t, func(t *testing.T) auth.Store {
		store, _, _ := open(t)
		return store
	})
}

// pages makes every page of a query one item long.
type pages struct{ *dynamodb.Client }

func (p pages) Query(ctx context.Context, in *dynamodb.QueryInput, options ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error) {
	in.Limit = aws.Int32(1)
	return p.Client.Query(ctx, in, options...)
}

// noOld is an engine that never hands out the item of a failed condition.
type noOld struct{ *dynamodb.Client }

func (c noOld) PutItem(ctx context.Context, in *dynamodb.PutItemInput, options ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error) {
	in.ReturnValuesOnConditionCheckFailure = ""
	return c.Client.PutItem(ctx, in, options...)
}

func (c noOld) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, options ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	in.ReturnValuesOnConditionCheckFailure = ""
	return c.Client.UpdateItem(ctx, in, options...)
}

func TestSmallPages(t *testing.T) {
	authtest.Run(t, func(t *testing.T) auth.Store {
		_, client, prefix := open(t)
		return dynamoauth.New(pages{client}, prefix)
	})
}

func TestEngineWithoutOldItems(t *testing.T) {
	authtest.Run(t, func(t *testing.T) auth.Store {
		_, client, prefix := open(t)
		return dynamoauth.New(noOld{client}, prefix)
	})
}

func TestReadsAreStronglyConsistent(t *testing.T) {
	var seen atomic.Int64
	store, _, _ := open(t, through(func(r *http.Request, body string, send func() (*http.Response, error)) (*http.Response, error) {
		if isOperation(r, "GetItem") && strings.Contains(body, `"ConsistentRead":true`) {
			seen.Add(1)
		}
		return send()
	}))
	if _, _, err := store.Get(t.Context(), "key_0"); err != nil || seen.Load() != 1 {
		t.Errorf("%d strongly consistent reads, %v; want one", seen.Load(), err)
	}
}

func TestTextIsNotInTheTable(t *testing.T) {
	store, client, prefix := open(t)
	m := auth.New(store, auth.Options{})
	secret, key, err := m.Create(t.Context(), "a", nil, auth.NewKey{Name: "n", Scopes: []auth.Scope{auth.LeasesRead}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Add(t.Context(), "a", "operator", operatorText); err != nil {
		t.Fatal(err)
	}
	out, err := client.Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String(keytype.APIKey.TableName(prefix))})
	if err != nil || len(out.Items) != 2 {
		t.Fatalf("scan: %d items, %v", len(out.Items), err)
	}
	var raw []byte
	for _, item := range out.Items {
		coded, err := json.Marshal(item) // binaries come in base64
		if err != nil {
			t.Fatal(err)
		}
		raw = append(append(raw, coded...), dynamo.Read(item, 1).Bytes("hash")...)
	}
	authtest.ExpectHidden(t, raw, key.ID, secret.Reveal(), operatorText)
}

func TestAnotherFormatIsRefused(t *testing.T) {
	store, client, prefix := open(t)
	rec := authtest.Record("a", "n", auth.LeasesRead)
	_, err := client.PutItem(t.Context(), &dynamodb.PutItemInput{
		TableName: aws.String(keytype.APIKey.TableName(prefix)),
		Item: dynamo.Item{
			"pk": dynamo.S(keytype.APIKey.Key(rec.ID)), "v": dynamo.N(2), "id": dynamo.S(rec.ID), "tenant": dynamo.S("a"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	authtest.ExpectRefused(t, store, rec)
}

// A create whose answer is lost is sent again by the SDK, and meets itself.
func TestLostAnswer(t *testing.T) {
	var lost atomic.Int64
	lose := through(func(r *http.Request, _ string, send func() (*http.Response, error)) (*http.Response, error) {
		resp, err := send()
		if err == nil && (isOperation(r, "PutItem") || isOperation(r, "UpdateItem")) && lost.Add(1)%2 == 1 {
			_ = resp.Body.Close()
			return nil, errors.New("the answer was lost")
		}
		return resp, err
	})
	t.Run("sent again", func(t *testing.T) {
		lost.Store(0)
		store, _, _ := open(t, lose, func(o *dynamodb.Options) {
			o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) {
				o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
			})
		})
		m := auth.New(store, auth.Options{})
		secret, key, err := m.Create(t.Context(), "a", nil, auth.NewKey{Name: "n", Scopes: []auth.Scope{auth.LeasesRead}})
		if err != nil {
			t.Fatalf("create: %v", err)
		}
		if got, err := m.Authenticate(t.Context(), secret.Reveal()); err != nil || got.ID != key.ID {
			t.Errorf("authenticate: %+v, %v", got, err)
		}
		if err := m.Revoke(t.Context(), "a", key.ID); err != nil {
			t.Errorf("revoke: %v", err)
		}
		if lost.Load() != 4 {
			t.Errorf("%d answers, want 4: two of them lost", lost.Load())
		}
	})
	t.Run("not sent again", func(t *testing.T) {
		lost.Store(0)
		store, _, _ := open(t, lose)
		m := auth.New(store, auth.Options{})
		if _, err := m.Add(t.Context(), "a", "n", operatorText); !errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Errorf("add: got %v, want that the outcome is unknown", err)
		}
		key, err := m.Authenticate(t.Context(), operatorText)
		if err != nil {
			t.Errorf("it had happened: %v", err)
		}
		lost.Store(0)
		if err := m.Revoke(t.Context(), "a", key.ID); !errors.Is(err, keytype.ErrOutcomeUnknown) {
			t.Errorf("revoke: got %v, want that the outcome is unknown", err)
		}
		if _, err := m.Authenticate(t.Context(), operatorText); !errors.Is(err, auth.ErrUnauthenticated) {
			t.Errorf("it had happened: got %v, want no such key: the cache must not know better", err)
		}
	})
}

// L32: a throttle or an outage is never "no such key".
func TestL32Unavailable(t *testing.T) {
	for code, cause := range map[string]error{"ProvisionedThroughputExceededException": nil, "": errors.New("the answer was lost")} {
		store, _, _ := open(t, through(func(*http.Request, string, func() (*http.Response, error)) (*http.Response, error) {
			if cause != nil {
				return nil, cause
			}
			body := fmt.Sprintf(`{"__type":"com.amazonaws.dynamodb.v20120810#%s"}`, code)
			return &http.Response{StatusCode: 400, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
		}))
		m := auth.New(store, auth.Options{})
		if _, err := m.Authenticate(t.Context(), operatorText); !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("authenticate: %v", err)
		}
		if _, err := m.List(t.Context(), "a"); !errors.Is(err, keytype.ErrUnavailable) {
			t.Errorf("list: %v", err)
		}
		want := keytype.ErrUnavailable // a throttled write had no effect
		if cause != nil {
			want = keytype.ErrOutcomeUnknown
		}
		if _, err := m.Add(t.Context(), "a", "n", operatorText); !errors.Is(err, want) {
			t.Errorf("add: got %v, want %v", err, want)
		}
		if err := m.Revoke(t.Context(), "a", "key_0"); !errors.Is(err, want) {
			t.Errorf("revoke: got %v, want %v", err, want)
		}
	}
}

// through puts do between the client and the engine.
func through(do func(r *http.Request, body string, send func() (*http.Response, error)) (*http.Response, error)) func(*dynamodb.Options) {
	return func(o *dynamodb.Options) {
		next := o.HTTPClient
		o.HTTPClient = clientFunc(func(r *http.Request) (*http.Response, error) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			return do(r, string(body), func() (*http.Response, error) { return next.Do(r) })
		})
	}
}

func isOperation(r *http.Request, name string) bool {
	return strings.HasSuffix(r.Header.Get("X-Amz-Target"), "."+name)
}

type clientFunc func(*http.Request) (*http.Response, error)

func (f clientFunc) Do(r *http.Request) (*http.Response, error) { return f(r) }
