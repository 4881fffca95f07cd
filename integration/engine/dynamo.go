package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// What every local engine takes: it checks no signature.
const (
	region    = "us-east-1"
	accessKey = "AKIDLOCAL"
	secretKey = "secret"
)

// A Dynamo is a store that speaks DynamoDB's protocol.
type Dynamo struct {
	// Endpoint is its URL, as in COORD_DYNAMODB.
	Endpoint string
	// Source says what it is, for people.
	Source string

	transport *http.Transport
	foreign   bool // somebody else's: nothing may be left behind in it

	tapOnce sync.Once
	tap     *tap // nil where nobody listens
}

var sharedDynamo = sync.OnceValues(findDynamo)

// DynamoDB returns the engine that this test binary shares. It ends the test
// where there is none or where the engine fails the self-check. Tests keep apart
// by their tables' names: see Prefix.
func DynamoDB(t testing.TB) *Dynamo {
	t.Helper()
	d, err := sharedDynamo()
	if err != nil {
		report("dynamodb", "not run: "+err.Error())
	}
	demand(t, "dynamodb", err)
	report("dynamodb", d.Source)
	t.Logf("dynamodb: %s", d.Source)
	return d
}

func findDynamo() (*Dynamo, error) {
	var d *Dynamo
	if endpoint, ok := os.LookupEnv("COORD_TEST_DYNAMODB"); ok && endpoint != "" {
		if !strings.Contains(endpoint, "://") {
			endpoint = "http://" + endpoint
		}
		d = newDynamo(endpoint, endpoint+" (COORD_TEST_DYNAMODB)")
		d.foreign = true
	} else {
		p, source, err := startDynoxide("")
		if err != nil {
			return nil, err
		}
		d = newDynamo("http://"+p.addr(), source)
	}
	return d, d.selfCheck()
}

func newDynamo(endpoint, source string) *Dynamo {
	return &Dynamo{
		Endpoint:  endpoint,
		Source:    source,
		transport: &http.Transport{MaxIdleConns: 512, MaxIdleConnsPerHost: 512},
	}
}

// startDynoxide starts a dynoxide of its own on the file, or in memory where the
// path is empty.
func startDynoxide(dbPath string) (*process, string, error) {
	path, err := findBinary("dynoxide")
	if err != nil {
		return nil, "", err
	}
	source := path + ", in memory"
	if dbPath != "" {
		source = path + ", on a file"
	}
	args := func(port int) []string {
		a := []string{"serve", "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--log", "quiet"}
		if dbPath != "" {
			a = append(a, "--db-path", dbPath)
		}
		return a
	}
	p, err := startProcess(path, args, dynamoAnswers)
	return p, source, err
}

// dynamoAnswers asks for the list of tables over a connection of its own, so
// that an engine which is restarted is not judged by its predecessor's.
func dynamoAnswers(ctx context.Context, addr string) error {
	d := newDynamo("http://"+addr, "")
	defer d.transport.CloseIdleConnections()
	if _, err := d.Client().ListTables(ctx, &dynamodb.ListTablesInput{}); err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	return nil
}

// Client returns a client of the engine with static credentials. It does not
// retry, so that a test sees each fault; options may change that.
func (d *Dynamo) Client(options ...func(*dynamodb.Options)) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region:       region,
		BaseEndpoint: &d.Endpoint,
		Credentials:  credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
		HTTPClient:   &http.Client{Transport: ownBody{d.transport}, Timeout: 30 * time.Second},
		Retryer:      aws.NopRetryer{},
	}, options...)
}

// ownBody sends a copy of each request's body. The SDK closes its own as soon as
// the response's head is there, maybe before the transport has looked for the end
// of it; the transport then closes the connection under a response that is still
// read, which the SDK's retries hide, and a client without them does not.
type ownBody struct{ next http.RoundTripper }

func (o ownBody) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, fmt.Errorf("read the request's body: %w", err)
		}
		if err := r.Body.Close(); err != nil {
			return nil, fmt.Errorf("close the request's body: %w", err)
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return o.next.RoundTrip(r) //nolint:wrapcheck // a round tripper hands on what it was given
}

// Env returns the settings, as NAME=value, with which a coordsvc process or the
// SDK's own chain reaches the engine.
func (d *Dynamo) Env() []string {
	return []string{
		"COORD_DYNAMODB=" + d.Watched(),
		"AWS_REGION=" + region,
		"AWS_ACCESS_KEY_ID=" + accessKey,
		"AWS_SECRET_ACCESS_KEY=" + secretKey,
	}
}

// Prefix returns a fresh prefix for the test's table names. In an engine named by
// its address the tables that bear it are deleted when the test ends.
func (d *Dynamo) Prefix(t testing.TB) string {
	t.Helper()
	prefix := FreshPrefix()
	if d.foreign {
		t.Cleanup(func() {
			if err := d.dropTables(context.Background(), prefix); err != nil {
				t.Errorf("dynamodb: clean up after the test: %v", err)
			}
		})
	}
	return prefix
}

func (d *Dynamo) dropTables(ctx context.Context, prefix string) error {
	c := d.Client()
	pages := dynamodb.NewListTablesPaginator(c, &dynamodb.ListTablesInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("list tables: %w", err)
		}
		for _, name := range page.TableNames {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			if _, err := c.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
				return fmt.Errorf("delete table %s: %w", name, err)
			}
		}
	}
	return nil
}

// selfCheck runs the 100-way race in a table of its own.
func (d *Dynamo) selfCheck() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := tableClaimer{client: d.Client(), table: FreshPrefix() + "selfcheck"}
	if err := c.create(ctx); err != nil {
		return fmt.Errorf("self-check of %s: %w", d.Endpoint, err)
	}
	defer func() { err = errors.Join(err, d.dropTables(ctx, c.table)) }()
	return selfCheck(ctx, c)
}

// A tableClaimer claims keys by conditional puts into one table.
type tableClaimer struct {
	client *dynamodb.Client
	table  string
}

func (c tableClaimer) create(ctx context.Context) error {
	_, err := c.client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            &c.table,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash}},
	})
	if err != nil {
		return fmt.Errorf("create table: %w", err)
	}
	wait := dynamodb.NewTableExistsWaiter(c.client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 20*time.Millisecond, time.Second
	})
	if err := wait.Wait(ctx, &dynamodb.DescribeTableInput{TableName: &c.table}, 30*time.Second); err != nil {
		return fmt.Errorf("wait for table: %w", err)
	}
	return nil
}

func (c tableClaimer) claim(ctx context.Context, key string) (bool, error) {
	_, err := c.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                 &c.table,
		Key:                       map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: key}},
		UpdateExpression:          aws.String("SET #won = :one"),
		ConditionExpression:       aws.String("attribute_not_exists(#won)"),
		ExpressionAttributeNames:  map[string]string{"#won": "won"},
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}},
	})
	if _, refused := errors.AsType[*types.ConditionalCheckFailedException](err); refused {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("conditional update: %w", err)
	}
	return true, nil
}

// A DynamoServer is an engine that one test owns and may kill.
type DynamoServer struct {
	*Dynamo
	process *process
}

// StartDynamo starts an engine for this test alone, on the file or, where dbPath
// is empty, in memory. It needs a local binary: an address cannot be killed. It
// ends with the test.
func StartDynamo(t testing.TB, dbPath string) *DynamoServer {
	t.Helper()
	p, source, err := startDynoxide(dbPath)
	if err != nil {
		report("dynamodb", "not run: "+err.Error())
	}
	demand(t, "dynamodb", err)
	t.Cleanup(p.kill)
	s := &DynamoServer{Dynamo: newDynamo("http://"+p.addr(), source), process: p}
	demand(t, "dynamodb", s.selfCheck())
	report("dynamodb", source)
	t.Logf("dynamodb: %s", source)
	return s
}

// Kill ends the engine with SIGKILL and returns once it is gone. What it had only
// in memory is lost.
func (s *DynamoServer) Kill() {
	s.tap.close()
	s.process.kill()
	s.transport.CloseIdleConnections()
}

// Restart starts the killed engine again on the same file and port, and returns
// once it serves. Clients made before go on working.
func (s *DynamoServer) Restart(t testing.TB) {
	t.Helper()
	if err := errors.Join(s.process.start(), s.tap.open()); err != nil {
		t.Fatalf("dynamodb: restart: %v", err)
	}
}

// Pause stops the engine in its tracks (SIGSTOP): connections stay open and
// nothing answers.
func (s *DynamoServer) Pause(t testing.TB) {
	t.Helper()
	if err := s.process.pause(); err != nil {
		t.Fatalf("dynamodb: %v", err)
	}
}

// Resume lets a paused engine go on.
func (s *DynamoServer) Resume(t testing.TB) {
	t.Helper()
	if err := s.process.resume(); err != nil {
		t.Fatalf("dynamodb: %v", err)
	}
}
