package dynamotest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// A Fault is what a [Proxy] does to a request.
type Fault string

// The faults.
const (
	Latency     Fault = "latency"
	ResetBefore Fault = "reset before the request"
	ResetAfter  Fault = "reset after the request"
	NoAnswer    Fault = "no answer"            // the request is carried out, and its sender waits in vain
	Late        Fault = "late delivery"        // reset, and the request is carried out nevertheless, some time later
	Duplicate   Fault = "duplicate delivery"   // carried out at once and answered, and again some time later
	Throttle    Fault = "throttle"             // the body that DynamoDB refuses with
	Conflict    Fault = "transaction conflict" // likewise
	Stale       Fault = "stale copy"           // a read that does not ask for consistency gets an old copy
)

// Faults are all there are.
var Faults = []Fault{Latency, ResetBefore, ResetAfter, NoAnswer, Late, Duplicate, Throttle, Conflict, Stale}

// A Landing is how a request was carried out.
type Landing int

// The landings.
const (
	Seen   Landing = iota // its sender is told
	Unseen                // its sender is not told
	Again                 // late, or once more
)

// Lag is how old a stale copy is, and how far an index is behind.
const Lag = 500 * time.Millisecond

// A Proxy lies between a client and its engine and does to requests what networks and
// DynamoDB do to them. With the same seed and the same requests it does the same.
type Proxy struct {
	Rand  *rand.Rand
	Rates map[Fault]float64 // how likely each fault is, for a request that it can befall
	// Calm stops the faults after which a caller may not know what became of its call; may be nil.
	Calm func() bool

	// Now is the time since some beginning. Pause lets time pass for the request, and
	// Later calls fn after that time, whatever becomes of the request.
	Now   func() time.Duration
	Pause func(ctx context.Context, d time.Duration)
	Later func(d time.Duration, fn func())
	// Landed is told of every request that was carried out; may be nil.
	Landed func(ctx context.Context, r Request, how Landing)

	Target *url.URL // the engine's, for ServeHTTP

	// HideOldItems is as a [Wire]'s. Rewrite changes requests, and Then does something
	// right after one was carried out: both are for mutants, and may be nil.
	HideOldItems bool
	Rewrite      func(*Request)
	Then         func(Request)

	mu     sync.Mutex // guards the rest, and Rand
	counts map[Fault]int
	copies map[string][]version
}

// A version is an item as it was from then on.
type version struct {
	at   time.Duration
	item any
}

// engines is shared by all proxies, whose requests go to one engine at a time.
var engines = &http.Transport{MaxIdleConns: 512, MaxIdleConnsPerHost: 512}

// Option makes a client send through the proxy, with the SDK's own retries but without
// their pauses.
func (p *Proxy) Option(o *dynamodb.Options) {
	o.HTTPClient = &http.Client{Transport: p}
	o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
		s.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
	})
}

// Counts returns how many faults of each kind there were.
func (p *Proxy) Counts() map[Fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// errTimeout is what the SDK meets when no answer comes.
var errTimeout = errors.New("dynamotest: no answer in time")

// RoundTrip implements http.RoundTripper.
func (p *Proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	request, raw, err := read(r)
	if err != nil {
		return nil, err
	}
	if p.Rewrite != nil {
		p.Rewrite(&request)
		if raw, err = json.Marshal(request.Body); err != nil {
			return nil, err
		}
	}
	plan := p.draw(request)
	p.Pause(r.Context(), plan.before)
	if plan.fault == Throttle {
		return refused(r, exception(plan.throttle)), nil
	}
	if plan.fault == Conflict {
		return refused(r, conflict(request)), nil
	}
	if plan.fault == Late {
		p.again(r, request, raw, plan.later)
	}
	if plan.fault == Late || plan.fault == ResetBefore {
		return nil, ErrLost
	}
	unseen, how := plan.fault == ResetAfter || plan.fault == NoAnswer, Seen
	if unseen {
		how = Unseen
	}
	answer, err := p.send(r, request, raw, how)
	if err != nil {
		return nil, err
	}
	if plan.fault == Duplicate {
		p.again(r, request, raw, plan.later)
	}
	p.Pause(r.Context(), plan.after)
	if !unseen {
		return answer, nil
	}
	_ = answer.Body.Close()
	if plan.fault == ResetAfter {
		return nil, ErrLost
	}
	p.Pause(r.Context(), plan.later)
	return nil, errTimeout
}

// ServeHTTP implements http.Handler, for the client of another process: the proxy is its
// engine, and target the proxy's.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = p.Target.Scheme, p.Target.Host
	answer, err := p.RoundTrip(out)
	if err != nil {
		reset(w)
		return
	}
	defer func() { _ = answer.Body.Close() }()
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}

// reset ends the connection without an answer.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// A plan is drawn before anything happens, so that it depends on the seed alone.
type plan struct {
	fault                Fault // one besides latency
	throttle             string
	before, after, later time.Duration
}

// exclusive are the faults of which a request meets one, in the order they are drawn.
var exclusive = []Fault{ResetBefore, ResetAfter, NoAnswer, Late, Duplicate, Throttle, Conflict}

func (p *Proxy) draw(request Request) plan {
	calm := p.Calm != nil && p.Calm()
	p.mu.Lock()
	defer p.mu.Unlock()
	pl := plan{before: p.upTo(3 * time.Millisecond), after: p.upTo(3 * time.Millisecond), later: p.upTo(time.Second)}
	pl.throttle = []string{"ProvisionedThroughputExceededException", "ThrottlingException"}[p.Rand.IntN(2)]
	slow, before := p.Rand.Float64() < p.Rates[Latency], p.Rand.IntN(2) == 0
	wait := p.upTo(300 * time.Millisecond)
	if slow {
		p.count(Latency)
		if before {
			pl.before += wait
		} else {
			pl.after += wait
		}
	}
	dice := p.Rand.Float64()
	for _, f := range exclusive {
		if dice -= p.Rates[f]; dice >= 0 {
			continue
		}
		if befalls(f, request, calm) {
			pl.fault = f
			p.count(f)
		}
		break
	}
	return pl
}

// befalls says whether the fault may happen to the request.
func befalls(f Fault, request Request, calm bool) bool {
	if f == Throttle {
		return true
	}
	if f == Conflict || f == Duplicate {
		return request.writes()
	}
	return !calm && (request.writes() || f == ResetBefore || f == NoAnswer)
}

func (p *Proxy) upTo(d time.Duration) time.Duration {
	return time.Duration(p.Rand.Int64N(int64(d/time.Microsecond))) * time.Microsecond
}

// count is called with mu held.
func (p *Proxy) count(f Fault) {
	if p.counts == nil {
		p.counts = map[Fault]int{}
	}
	p.counts[f]++
}

// again has the request carried out later.
func (p *Proxy) again(r *http.Request, request Request, raw []byte, d time.Duration) {
	r = r.Clone(context.WithoutCancel(r.Context()))
	p.Later(d, func() {
		if answer, err := p.send(r, request, raw, Again); err == nil {
			_ = answer.Body.Close()
		}
	})
}

// send has the engine carry out the request, and reads its answer whole.
func (p *Proxy) send(r *http.Request, request Request, raw []byte, how Landing) (*http.Response, error) {
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.RequestURI = ""
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	answer, err := engines.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		text = p.carriedOut(request, text)
		if p.Landed != nil {
			p.Landed(r.Context(), request, how)
		}
		if p.Then != nil {
			p.Then(request)
		}
	}
	answer.Header.Del("X-Amz-Crc32")
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	if p.HideOldItems && answer.StatusCode == http.StatusBadRequest {
		return answer, hideItems(answer)
	}
	return answer, nil
}

// carriedOut remembers what was written and makes old what may be old.
func (p *Proxy) carriedOut(request Request, text []byte) []byte {
	var answer map[string]any
	if err := json.Unmarshal(text, &answer); err != nil {
		return text
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	consistent, _ := request.Body["ConsistentRead"].(bool)
	switch {
	case request.Operation == update:
		p.remember(request.Body, answer["Attributes"])
	case request.Operation == transact:
		items, _ := request.Body["TransactItems"].([]any)
		for _, item := range items {
			for _, action := range item.(map[string]any) {
				p.remember(action.(map[string]any), nil)
			}
		}
	case consistent:
	case request.Operation == "GetItem":
		return p.old(request.Body, text)
	case request.Operation == "Query":
		return p.lagging(request.Body, answer, text)
	}
	return text
}

func place(table any, key any) string {
	raw, err := json.Marshal([]any{table, key})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// remember notes a write. The item is nil where the answer does not tell it.
func (p *Proxy) remember(body map[string]any, item any) {
	if p.copies == nil {
		p.copies = map[string][]version{}
	}
	at := place(body["TableName"], body["Key"])
	p.copies[at] = append(p.copies[at], version{p.Now(), item})
}

// old answers with the item as it was: not at all, where all writes are younger.
func (p *Proxy) old(body map[string]any, text []byte) []byte {
	versions := p.copies[place(body["TableName"], body["Key"])]
	if len(versions) == 0 || versions[len(versions)-1].at <= p.Now()-Lag {
		return text
	}
	answer := map[string]any{}
	for _, v := range versions {
		if v.at <= p.Now()-Lag && v.item != nil {
			answer["Item"] = v.item
		}
	}
	p.count(Stale)
	raw, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	return raw
}

// lagging leaves out of an index's answer what was written just now.
func (p *Proxy) lagging(body, answer map[string]any, text []byte) []byte {
	if body["IndexName"] == nil {
		return text
	}
	items, _ := answer["Items"].([]any)
	kept := []any{}
	for _, item := range items {
		versions := p.copies[place(body["TableName"], map[string]any{"pk": item.(map[string]any)["pk"]})]
		if len(versions) == 0 || versions[len(versions)-1].at <= p.Now()-Lag {
			kept = append(kept, item)
			continue
		}
		p.count(Stale)
	}
	answer["Items"], answer["Count"] = kept, len(kept)
	raw, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	return raw
}

// conflict is how DynamoDB refuses a write that meets a transaction.
func conflict(request Request) string {
	if request.Operation != transact {
		return exception("TransactionConflictException")
	}
	items, _ := request.Body["TransactItems"].([]any)
	codes := make([]string, len(items))
	for i := range codes {
		codes[i] = "None"
	}
	codes[len(codes)-1] = "TransactionConflict"
	return cancellation(codes)
}
