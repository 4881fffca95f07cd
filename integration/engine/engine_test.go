package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// outcome records how demand ends a test.
type outcome struct {
	testing.TB
	skipped, failed bool
}

func (*outcome) Helper()                 {}
func (o *outcome) Skipf(string, ...any)  { o.skipped = true }
func (o *outcome) Fatalf(string, ...any) { o.failed = true }

func TestDemand(t *testing.T) {
	none := fmt.Errorf("%w: no binary", errNone)
	for _, step := range []struct {
		why             string
		require         string
		err             error
		skipped, failed bool
	}{
		{"an engine that was found", "dynamodb", nil, false, false},
		{"a missing engine that nobody requires", "", none, true, false},
		{"a missing engine, another one is required", "redis", none, true, false},
		{"a missing engine that is required", "redis,dynamodb", none, false, true},
		{"a broken engine is never a skip", "", errors.New("not atomic"), false, true},
	} {
		t.Run(step.why, func(t *testing.T) {
			t.Setenv("COORD_TEST_REQUIRE", step.require)
			got := &outcome{TB: t}
			demand(got, "dynamodb", step.err)
			if got.skipped != step.skipped || got.failed != step.failed {
				t.Errorf("skipped %v, failed %v; want %v, %v", got.skipped, got.failed, step.skipped, step.failed)
			}
		})
	}
}

func TestFindBinaryLooksWhereToolsAreInstalled(t *testing.T) {
	for _, where := range []struct{ name, dir string }{
		{"on PATH", "bin"},
		{"in the repository's .tools/bin", "repo/.tools/bin"},
		{"where cargo installs with CARGO_HOME", "cargo/bin"},
		{"where cargo installs without it", "home/.cargo/bin"},
	} {
		t.Run(where.name, func(t *testing.T) {
			top := t.TempDir()
			want := filepath.Join(top, where.dir, "someengine")
			for _, dir := range []string{filepath.Dir(want), filepath.Join(top, "repo", "pkg")} {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for file, mode := range map[string]os.FileMode{want: 0o700, filepath.Join(top, "repo", "go.mod"): 0o600} {
				if err := os.WriteFile(file, nil, mode); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", filepath.Join(top, "bin"))
			t.Setenv("HOME", filepath.Join(top, "home"))
			t.Setenv("CARGO_HOME", filepath.Join(top, "cargo"))
			t.Chdir(filepath.Join(top, "repo", "pkg"))
			if got, err := findBinary("someengine"); err != nil || got != want {
				t.Errorf("findBinary = %q, %v; want %q", got, err, want)
			}
			if _, err := findBinary("otherengine"); !errors.Is(err, errNone) {
				t.Errorf("findBinary of a missing one = %v, want %v", err, errNone)
			}
		})
	}
}

func TestReportWritesOneLinePerEngine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report")
	t.Setenv("COORD_TEST_REPORT", file)
	for range 2 {
		report("someengine", "somewhere")
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/coordsvc/coordsvc/integration/engine\tsomeengine\tsomewhere\n"; string(got) != want {
		t.Errorf("report = %q, want %q", got, want)
	}
}

func TestFreshPrefixIsNobodyElses(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		prefix := FreshPrefix()
		if len(prefix) != 13 || strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Fatalf("FreshPrefix = %q, want 13 bytes of [a-z0-9_]", prefix)
		}
		if seen[prefix] {
			t.Fatalf("FreshPrefix = %q twice", prefix)
		}
		seen[prefix] = true
	}
}

func TestDynamoDBIsSharedAndTablesStayApart(t *testing.T) {
	d := DynamoDB(t)
	if DynamoDB(t) != d {
		t.Error("a second call started a second engine")
	}
	ours, theirs := d.Prefix(t), d.Prefix(t)
	for _, prefix := range []string{ours, theirs} {
		if err := (tableClaimer{d.Client(), prefix + "keys"}).create(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.dropTables(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	_, err := d.Client().DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: new(ours + "keys")})
	if _, gone := errors.AsType[*types.ResourceNotFoundException](err); !gone {
		t.Errorf("after dropTables: %v, want ResourceNotFoundException", err)
	}
	if _, err := d.Client().DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: new(theirs + "keys")}); err != nil {
		t.Errorf("another test's table: %v", err)
	}
}

func TestDynamoDBSelfCheckLeavesNoTable(t *testing.T) {
	s := StartDynamo(t, "")
	got, err := s.Client().ListTables(t.Context(), &dynamodb.ListTablesInput{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.TableNames) != 0 {
		t.Errorf("tables %v, want none", got.TableNames)
	}
}

func TestDynamoServerKeepsAcknowledgedWritesAcrossKill(t *testing.T) {
	s := StartDynamo(t, filepath.Join(t.TempDir(), "dynamo.db"))
	c := tableClaimer{s.Client(), s.Prefix(t) + "keys"}
	if err := c.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	const writes = 200
	key := func(i int) string { return fmt.Sprintf("key-%d", i) }
	for i := range writes {
		if won, err := c.claim(t.Context(), key(i)); err != nil || !won {
			t.Fatalf("claim %d = %v, %v", i, won, err)
		}
	}
	s.Kill()
	if _, err := c.claim(t.Context(), "while down"); err == nil {
		t.Fatal("a killed engine answered")
	}
	s.Restart(t)
	for i := range writes {
		if won, err := c.claim(t.Context(), key(i)); err != nil || won {
			t.Fatalf("claim %d after the restart = %v, %v; the acknowledged write is lost", i, won, err)
		}
	}
}

func TestDynamoServerPauses(t *testing.T) {
	s := StartDynamo(t, "")
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Client().ListTables(ctx, &dynamodb.ListTablesInput{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused engine: %v, want %v", err, context.DeadlineExceeded)
	}
	s.Resume(t)
	if _, err := s.Client().ListTables(t.Context(), &dynamodb.ListTablesInput{}); err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

func TestRedisIsShared(t *testing.T) {
	if r := Redis(t); Redis(t) != r {
		t.Error("a second call started a second node")
	}
}

func TestRedisServerLosesMemoryAcrossKillOnly(t *testing.T) {
	s := StartRedis(t)
	do := func(command string) string {
		t.Helper()
		reply, err := redisDo(t.Context(), s.Addr, command)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	do("SET k v")
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if reply, err := redisDo(ctx, s.Addr, "PING"); err == nil {
		t.Errorf("a paused node answers %q", reply)
	}
	s.Resume(t)
	if got := do("EXISTS k"); got != ":1" {
		t.Errorf("EXISTS after a pause = %q, want :1", got)
	}
	s.Kill()
	if _, err := redisDo(t.Context(), s.Addr, "PING"); err == nil {
		t.Error("a killed node answers")
	}
	s.Restart(t)
	if got := do("EXISTS k"); got != ":0" {
		t.Errorf("EXISTS after a kill = %q, want :0", got)
	}
}

// TestEngineDiesWithTestBinary runs this test binary once more, as a victim that
// starts an engine and is killed before it can clean up.
func TestEngineDiesWithTestBinary(t *testing.T) {
	if os.Getenv("COORD_ENGINE_VICTIM") != "" {
		p, _, err := startDynoxide("")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("engine at", p.addr())
		select {}
	}
	if _, err := findBinary("dynoxide"); err != nil {
		demand(t, "dynamodb", err)
	}
	victim := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEngineDiesWithTestBinary$")
	victim.Env = append(os.Environ(), "COORD_ENGINE_VICTIM=1")
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		addr, _ = strings.CutPrefix(lines.Text(), "engine at ")
	}
	if err := dynamoAnswers(t.Context(), addr); err != nil {
		t.Fatalf("the victim's engine: %v", err)
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // killed
	for deadline := time.Now().Add(5 * time.Second); ; {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatalf("the engine at %s outlives its test binary", addr)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Groups are slow to start: once each is enough.
func TestRedisGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("starts eleven processes")
	}
	t.Run("sentinel", func(t *testing.T) {
		s := StartSentinel(t)
		s.Fail(t, func() {})
	})
	t.Run("cluster", func(t *testing.T) {
		c := StartCluster(t)
		c.KillMaster(t, c.Addrs[0])
	})
}
