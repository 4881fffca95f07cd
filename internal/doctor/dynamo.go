package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/coordsvc/coordsvc/internal/dynamo"
)

const leastCapacity = 5 // units a second, of a provisioned table

// Tables checks that the tables stand as the code wants them, and how they are kept.
func Tables(ctx context.Context, client *dynamodb.Client, tables ...dynamo.Table) (all []Finding) {
	for _, t := range tables {
		all = append(all, table(ctx, client, t)...)
	}
	return all
}

func table(ctx context.Context, client *dynamodb.Client, t dynamo.Table) []Finding {
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &t.Name})
	if _, missing := errors.AsType[*types.ResourceNotFoundException](err); missing {
		return []Finding{{"table", t.Name, Fault, "does not exist", "run coordsvc tables create, or apply the Terraform module"}}
	}
	if err != nil {
		return []Finding{{"table", t.Name, Fault, short(err), "check COORD_DYNAMODB, the credentials, and that the policy allows dynamodb:DescribeTable"}}
	}
	err = dynamo.Check(ctx, client, t)
	detail := "has its keys and indexes"
	if err != nil {
		detail = err.Error()
	}
	all := []Finding{found("table", t.Name, Fault, err != nil, detail, "move its items to a new table: keys cannot be changed")}
	all = append(all, kept(out.Table)...)
	return append(all, ttl(ctx, client, t), recovery(ctx, client, t))
}

// kept looks at what the table itself says of its protection and its capacity.
func kept(d *types.TableDescription) []Finding {
	name := aws.ToString(d.TableName)
	encrypted := d.SSEDescription != nil && d.SSEDescription.Status == types.SSEStatusEnabled
	protected := aws.ToBool(d.DeletionProtectionEnabled)
	all := []Finding{
		found("table status", name, Fault, d.TableStatus != types.TableStatusActive && d.TableStatus != types.TableStatusUpdating, string(d.TableStatus), "wait, or restore it"),
		found("table encryption", name, Warning, !encrypted, encryption(encrypted), "encrypt it with a KMS key"),
		found("table deletion", name, Warning, !protected, fmt.Sprintf("protected: %v", protected), "switch deletion protection on"),
	}
	if c := d.ProvisionedThroughput; c != nil && aws.ToInt64(c.ReadCapacityUnits)+aws.ToInt64(c.WriteCapacityUnits) > 0 {
		reads, writes := aws.ToInt64(c.ReadCapacityUnits), aws.ToInt64(c.WriteCapacityUnits)
		all = append(all, found("table capacity", name, Fault, min(reads, writes) < leastCapacity, fmt.Sprintf("%d reads, %d writes a second", reads, writes), "raise it, or bill on demand"))
	} else {
		all = append(all, Finding{Check: "table capacity", Subject: name, Status: OK, Detail: "on demand"})
	}
	return all
}

func encryption(own bool) string {
	if own {
		return "with a KMS key"
	}
	return "with the key that DynamoDB owns"
}

func ttl(ctx context.Context, client *dynamodb.Client, t dynamo.Table) Finding {
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &t.Name})
	if err != nil {
		return unknown("table TTL", t.Name, "DescribeTimeToLive", err)
	}
	got := ""
	if d := out.TimeToLiveDescription; d != nil && (d.TimeToLiveStatus == types.TimeToLiveStatusEnabled || d.TimeToLiveStatus == types.TimeToLiveStatusEnabling) {
		got = aws.ToString(d.AttributeName)
	}
	fix := "run coordsvc tables create, which switches it on"
	if t.TTL == "" {
		fix = "switch it off: nothing here may be removed"
	}
	return found("table TTL", t.Name, Fault, got != t.TTL, fmt.Sprintf("by %q, wanted %q", got, t.TTL), fix)
}

func recovery(ctx context.Context, client *dynamodb.Client, t dynamo.Table) Finding {
	out, err := client.DescribeContinuousBackups(ctx, &dynamodb.DescribeContinuousBackupsInput{TableName: &t.Name})
	if err != nil {
		return unknown("table recovery", t.Name, "DescribeContinuousBackups", err)
	}
	on := false
	if d := out.ContinuousBackupsDescription; d != nil && d.PointInTimeRecoveryDescription != nil {
		on = d.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus == types.PointInTimeRecoveryStatusEnabled
	}
	return found("table recovery", t.Name, Fault, !on, fmt.Sprintf("to a point in time: %v", on), "switch point-in-time recovery on: what is durable is nowhere else")
}

func unknown(check, subject, operation string, err error) Finding {
	return Finding{check, subject, Unknown, short(err), "run doctor where dynamodb:" + operation + " is allowed"}
}

// short is the code of an answer that is an error, else the error.
func short(err error) string {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return e.ErrorCode()
	}
	return err.Error()
}

// DynamoClock checks this node's clock by the answers that the clock has seen. within
// is half of how far two nodes may differ.
func DynamoClock(clock *dynamo.Clock, within time.Duration) Finding {
	return found("clock", "this node", Fault, !clock.Within(within), fmt.Sprintf("to be within %v of DynamoDB's", within), "set it by NTP: the node takes over no lease, and is not ready")
}

// denied tells a lack of permission from every other answer.
func denied(err error) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	return ok && strings.Contains(e.ErrorCode(), "AccessDenied")
}
