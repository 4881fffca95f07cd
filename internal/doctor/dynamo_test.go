package doctor_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/doctor"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/schema"
)

// An account is an engine that answers as AWS does where the engine does not, and
// otherwise where a test plants something.
type account struct {
	client *dynamodb.Client
	prefix string
	tables []dynamo.Table

	mu       sync.Mutex
	answers  map[string]string // by operation, and a part of its body behind a blank; guarded by mu
	denied   string            // the same, of what is not allowed; guarded by mu
	dateOff  time.Duration     // of its clock; guarded by mu
	describe func(body string) string
}

// open makes the tables on an engine, behind a proxy that tells of their protection
// what an engine cannot.
func open(t *testing.T) *account {
	t.Helper()
	db := engine.DynamoDB(t)
	a := &account{prefix: db.Prefix(t)}
	a.tables = schema.Tables(a.prefix)
	if err := dynamo.Create(t.Context(), db.Client(), a.tables...); err != nil {
		t.Fatal(err)
	}
	a.good()
	target, err := url.Parse(db.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(a.proxy(target))
	t.Cleanup(server.Close)
	a.client = db.Client(func(o *dynamodb.Options) { o.BaseEndpoint = &server.URL })
	return a
}

// good undoes what was planted.
func (a *account) good() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = map[string]string{"DescribeContinuousBackups": `{"ContinuousBackupsDescription":{"ContinuousBackupsStatus":"ENABLED","PointInTimeRecoveryDescription":{"PointInTimeRecoveryStatus":"ENABLED"}}}`}
	a.denied, a.dateOff = "", 0
	a.describe = func(body string) string { return encrypted(undeletable(body)) }
}

func encrypted(body string) string {
	return strings.Replace(body, `"Table":{`, `"Table":{"SSEDescription":{"Status":"ENABLED","SSEType":"KMS"},`, 1)
}

func undeletable(body string) string {
	return strings.Replace(body, `"DeletionProtectionEnabled":false`, `"DeletionProtectionEnabled":true`, 1)
}

func (a *account) plant(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func matches(rule, operation, body string) bool {
	want, part, _ := strings.Cut(rule, " ")
	return want == operation && strings.Contains(body, part)
}

func (a *account) proxy(target *url.URL) http.Handler {
	forward := httputil.NewSingleHostReverseProxy(target)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		a.mu.Lock()
		defer a.mu.Unlock()
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.Header().Set("Date", time.Now().Add(a.dateOff).UTC().Format(http.TimeFormat))
		if a.denied != "" && matches(a.denied, operation, string(body)) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"User is not authorized"}`)
			return
		}
		for rule, answer := range a.answers {
			if matches(rule, operation, string(body)) {
				_, _ = io.WriteString(w, answer)
				return
			}
		}
		kept := httptest.NewRecorder()
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Del("Accept-Encoding")
		forward.ServeHTTP(kept, r)
		text := kept.Body.String()
		if operation == "DescribeTable" {
			text = a.describe(text)
		}
		w.WriteHeader(kept.Code)
		_, _ = io.WriteString(w, text)
	})
}

func (a *account) examine(t *testing.T) []doctor.Finding {
	t.Helper()
	return append(doctor.Tables(t.Context(), a.client, a.tables...), doctor.Permissions(t.Context(), a.client, a.prefix, a.tables...)...)
}

func TestTablesPlanted(t *testing.T) {
	t.Parallel()
	a := open(t)
	clean(t, a.examine(t))
	sessions := a.prefix + "sessions"
	named := `"` + sessions + `"`
	for _, c := range []struct {
		what, check string
		status      doctor.Status
		plant       func()
	}{
		{"no recovery", "table recovery", doctor.Fault, func() {
			a.answers["DescribeContinuousBackups"] = `{"ContinuousBackupsDescription":{"ContinuousBackupsStatus":"ENABLED","PointInTimeRecoveryDescription":{"PointInTimeRecoveryStatus":"DISABLED"}}}`
		}},
		{"recovery cannot be seen", "table recovery", doctor.Unknown, func() { a.denied = "DescribeContinuousBackups" }},
		{"no TTL", "table TTL", doctor.Fault, func() {
			a.answers["DescribeTimeToLive "+named] = `{"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLED"}}`
		}},
		{"a TTL where nothing may go", "table TTL", doctor.Fault, func() {
			a.answers[`DescribeTimeToLive "`+a.prefix+`leases"`] = `{"TimeToLiveDescription":{"TimeToLiveStatus":"ENABLED","AttributeName":"ttl"}}`
		}},
		{"encrypted with nobody's key", "table encryption", doctor.Warning, func() {
			a.describe = undeletable
		}},
		{"may be deleted", "table deletion", doctor.Warning, func() {
			a.describe = encrypted
		}},
		{"is being deleted", "table status", doctor.Fault, func() {
			good := a.describe
			a.describe = func(body string) string { return strings.Replace(good(body), `"ACTIVE"`, `"DELETING"`, 1) }
		}},
		{"hardly any capacity", "table capacity", doctor.Fault, func() {
			good := a.describe
			a.describe = func(body string) string {
				return strings.NewReplacer(`"ReadCapacityUnits":0`, `"ReadCapacityUnits":1`, `"WriteCapacityUnits":0`, `"WriteCapacityUnits":100`).Replace(good(body))
			}
		}},
		{"may not be described", "table", doctor.Fault, func() { a.denied = "DescribeTable " + named }},
		{"an index may not be asked", "permission", doctor.Fault, func() { a.denied = `Query "by_tenant"` }},
		{"may not write", "permission", doctor.Fault, func() { a.denied = "UpdateItem " + named }},
		{"may not check within a transaction", "permission", doctor.Fault, func() { a.denied = "TransactWriteItems " + named }},
	} {
		t.Run(c.what, func(t *testing.T) {
			a.good()
			a.plant(c.plant)
			expect(t, a.examine(t), c.check, c.status)
		})
	}
}

func TestTablesThatAreNotTheOnes(t *testing.T) {
	t.Parallel()
	a := open(t)
	t.Run("missing", func(t *testing.T) {
		findings := doctor.Tables(t.Context(), a.client, dynamo.Table{Name: a.prefix + "none", PartitionKey: "pk"})
		expect(t, findings, "table", doctor.Fault)
	})
	t.Run("of other keys", func(t *testing.T) {
		other := a.tables[0]
		other.PartitionKey = "id"
		expect(t, doctor.Tables(t.Context(), a.client, other), "table", doctor.Fault)
	})
}

func TestClockPlanted(t *testing.T) {
	t.Parallel()
	a := open(t)
	for what, off := range map[string]time.Duration{"right": 0, "an hour behind": time.Hour} {
		t.Run(what, func(t *testing.T) {
			a.plant(func() { a.dateOff = off })
			clock := dynamo.NewClock(time.Now)
			client := dynamodb.New(a.client.Options(), clock.Listen)
			ask := func() {
				_, _ = client.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &a.tables[0].Name})
			}
			for end := time.Now().Add(5 * time.Second); !clock.Within(time.Second) && time.Now().Before(end); time.Sleep(137 * time.Millisecond) {
				ask()
				if off != 0 {
					break
				}
			}
			finding := doctor.DynamoClock(clock, time.Second)
			if want := map[bool]doctor.Status{true: doctor.OK, false: doctor.Fault}[off == 0]; finding.Status != want {
				t.Errorf("%+v, want %s", finding, want)
			}
		})
	}
}

// What doctor tries leaves nothing behind.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.examine(t)
	for _, table := range a.tables {
		out, err := a.client.Scan(t.Context(), &dynamodb.ScanInput{TableName: &table.Name, Select: types.SelectCount})
		if err != nil || out.Count != 0 {
			t.Errorf("%s: %v, %d items", aws.ToString(&table.Name), err, out.Count)
		}
	}
	var text strings.Builder
	report := doctor.NewReport(append(a.examine(t), doctor.Finding{Check: "x", Subject: "s", Status: doctor.Fault, Detail: "d", Fix: "f"}))
	report.Write(&text)
	if report.Faults != 1 || !strings.HasPrefix(text.String(), "fault    x: s: d\n         fix: f\n") || !strings.HasSuffix(text.String(), fmt.Sprintf("1 faults, 0 warnings, 0 not found out, %d checks\n", len(report.Findings))) {
		t.Errorf("%+v\n%s", report, text.String())
	}
}
