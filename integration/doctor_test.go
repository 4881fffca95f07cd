package integration

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/schema"
)

// diagnosis runs coordsvc doctor.
func diagnosis(t *testing.T, env []string, args ...string) (report struct {
	Faults, Warnings int
	Findings         []struct{ Check, Subject, Status, Detail, Fix string }
}, text string, failed bool,
) {
	t.Helper()
	out, stderr, err := output(t, env, append([]string{"doctor", "-o", "json"}, args...)...)
	if jsonErr := json.Unmarshal([]byte(out), &report); jsonErr != nil {
		t.Fatalf("%v: %s%s", jsonErr, out, stderr)
	}
	if len(report.Findings) < 10 {
		t.Errorf("%d findings", len(report.Findings))
	}
	return report, out, err != nil
}

// A good set-up passes with exit code 0, and each planted fault fails under its name.
func TestDoctorEmbedded(t *testing.T) {
	t.Parallel()
	s := start(t)
	report, text, failed := diagnosis(t, s.env)
	if failed || report.Faults != 0 {
		t.Errorf("a good set-up: %s", text)
	}
	dir := s.setting("COORD_DATA_DIR")
	secrets := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(secrets, []byte("route short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		check string
		plant func() (undo func(), env []string)
	}{
		{"data folder", func() (func(), []string) {
			must(t, os.Chmod(dir, 0o755))
			return func() { must(t, os.Chmod(dir, 0o700)) }, nil
		}},
		{"keys file", func() (func(), []string) {
			must(t, os.Chmod(filepath.Join(dir, "keys"), 0o644))
			return func() { must(t, os.Chmod(filepath.Join(dir, "keys"), 0o600)) }, nil
		}},
		{"keys file", func() (func(), []string) { return func() {}, []string{"COORD_KEYS_FILE=" + secrets} }},
		{"bootstrap key file", func() (func(), []string) {
			return func() {}, []string{"COORD_BOOTSTRAP_KEY_FILE=" + filepath.Join(dir, "none")}
		}},
		{"policies", func() (func(), []string) {
			return func() {}, []string{"COORD_POLICY_PATH=" + writeFile(t, "version: 1\npolicies:\n  - {name: p, limits: [{name: l, key: [a], algorithm: token_bucket, rate: 1/s}]}\n")}
		}},
		{"redis answers", func() (func(), []string) { return func() {}, []string{"COORD_REDIS_URL=redis://127.0.0.1:1"} }},
	} {
		undo, env := c.plant()
		report, text, failed := diagnosis(t, append(s.env, env...))
		undo()
		named := 0
		for _, f := range report.Findings {
			if f.Status == "fault" && f.Check == c.check && f.Fix != "" {
				named++
			}
		}
		if !failed || named != 1 || report.Faults != 1 {
			t.Errorf("planted: %s: %s", c.check, text)
		}
	}
	out, _, err := output(t, append(s.env, "COORD_REDIS_URL=redis://127.0.0.1:1"), "doctor")
	if err == nil || !strings.HasPrefix(out, "fault    redis answers: redis: ") || !strings.Contains(out, "1 faults, ") {
		t.Errorf("for people: %v %s", err, out)
	}
	if strings.Contains(text, "csk_") {
		t.Error("the report holds a key")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What doctor tries is what the policy allows, so that it finds what is missing and
// works with the policy alone; its other questions are descriptions.
func TestDoctorTriesWhatThePolicyAllows(t *testing.T) {
	t.Parallel()
	db := engine.DynamoDB(t)
	faults := newDynamoFaults(t, db.Watched())
	faults.prefix = db.Prefix(t)
	env, _ := production(t, db.Env(), faults.prefix)
	createTables(t, env)
	report, text, _ := diagnosis(t, append(env, "COORD_DYNAMODB="+faults.url, "COORD_REDIS_URL="+engine.StartRedis(t).URL()))
	for _, f := range report.Findings {
		if f.Status == "fault" && f.Check != "table recovery" { // which no engine has
			t.Errorf("%+v", f)
		}
	}
	allowed := policyStatements(t)
	for a := range faults.seen {
		if !allowed[a] && !strings.HasPrefix(a.action, "Describe") {
			t.Errorf("doctor tries %v, which the policy does not allow", a)
		}
	}
	for a := range allowed {
		if !faults.seen[a] {
			t.Errorf("the policy allows %v, which doctor does not try", a)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// On an engine as it is doctor finds no fault, and cannot see one thing alone: the
// engine knows no DescribeContinuousBackups.
func TestDoctorOnTheEngineItself(t *testing.T) {
	t.Parallel()
	db := engine.DynamoDB(t)
	prefix := db.Prefix(t)
	env, _ := production(t, db.Env(), prefix)
	tables, client := schema.Tables(prefix), db.Client(protectedTables)
	must(t, dynamo.Create(t.Context(), client, tables...))
	t.Cleanup(func() { // or the tables stay
		for _, table := range tables {
			_, err := client.UpdateTable(context.Background(), &dynamodb.UpdateTableInput{TableName: &table.Name, DeletionProtectionEnabled: aws.Bool(false)})
			must(t, err)
		}
	})
	report, text, failed := diagnosis(t, append(env, "COORD_REDIS_URL="+engine.StartRedis(t).URL()))
	if failed || report.Faults != 0 {
		t.Error("a fault on a good set-up")
	}
	unseen := 0
	for _, f := range report.Findings {
		switch {
		case f.Check == "table recovery" && f.Status == "unknown" && f.Detail == "UnknownOperationException":
			unseen++
		case strings.HasPrefix(f.Check, "table") && f.Status != "ok", f.Status == "unknown":
			t.Errorf("%+v", f)
		}
	}
	if unseen != len(tables) {
		t.Errorf("recovery of %d of %d tables cannot be seen", unseen, len(tables))
	}
	if t.Failed() {
		t.Log(text)
	}
}

// protectedTables has tables made encrypted and protected, as the Terraform module makes them.
func protectedTables(o *dynamodb.Options) {
	protect := middleware.InitializeMiddlewareFunc("test:kept",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			if create, ok := in.Parameters.(*dynamodb.CreateTableInput); ok {
				create.DeletionProtectionEnabled = aws.Bool(true)
				create.SSESpecification = &types.SSESpecification{Enabled: aws.Bool(true), SSEType: types.SSETypeKms}
			}
			return next.HandleInitialize(ctx, in)
		})
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error { return stack.Initialize.Add(protect, middleware.Before) })
}
