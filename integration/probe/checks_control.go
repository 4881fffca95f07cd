package probe

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// controlChecks probe the calls that make and describe tables.
func controlChecks() []check {
	return []check{
		{"ctl.DescribeTable fields", func(t *subject) error {
			o, e := t.client.DescribeTable(t.ctx, &dynamodb.DescribeTableInput{TableName: &t.table})
			if e != nil {
				return e
			}
			d := o.Table
			var miss []string
			if d.TableStatus != "ACTIVE" {
				miss = append(miss, "TableStatus="+string(d.TableStatus))
			}
			if d.BillingModeSummary == nil || d.BillingModeSummary.BillingMode != "PAY_PER_REQUEST" {
				miss = append(miss, "BillingModeSummary")
			}
			if len(d.KeySchema) != 2 || len(d.AttributeDefinitions) != 4 {
				miss = append(miss, "KeySchema/AttributeDefinitions")
			}
			if len(d.GlobalSecondaryIndexes) != 2 {
				miss = append(miss, fmt.Sprintf("GSIs=%d", len(d.GlobalSecondaryIndexes)))
			} else if d.GlobalSecondaryIndexes[0].IndexStatus != "ACTIVE" {
				miss = append(miss, "IndexStatus="+string(d.GlobalSecondaryIndexes[0].IndexStatus))
			}
			if d.TableArn == nil {
				miss = append(miss, "TableArn")
			}
			if len(miss) > 0 {
				return fmt.Errorf("missing/wrong: %s", strings.Join(miss, ", "))
			}
			return nil
		}},
		{"ctl.CreateTable duplicate -> ResourceInUse", func(t *subject) error {
			_, e := t.client.CreateTable(t.ctx, tableInput(t.table))
			return want("ResourceInUseException", e)
		}},
		{"ctl.UpdateTimeToLive + Describe", func(t *subject) error {
			_, e := t.client.UpdateTimeToLive(t.ctx, &dynamodb.UpdateTimeToLiveInput{TableName: &t.table, TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: new("ttl"), Enabled: new(true)}})
			if e != nil {
				return e
			}
			o, e := t.client.DescribeTimeToLive(t.ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &t.table})
			if e != nil {
				return e
			}
			if o.TimeToLiveDescription == nil || o.TimeToLiveDescription.TimeToLiveStatus != "ENABLED" || aws.ToString(o.TimeToLiveDescription.AttributeName) != "ttl" {
				return fmt.Errorf("describe: %+v", o.TimeToLiveDescription)
			}
			return nil
		}},
		{"ctl.unknown table: Describe/Put/Get/Query/Update -> ResourceNotFound", func(t *subject) error {
			nt := new("nope")
			_, e1 := t.client.DescribeTable(t.ctx, &dynamodb.DescribeTableInput{TableName: nt})
			_, e2 := t.client.PutItem(t.ctx, &dynamodb.PutItemInput{TableName: nt, Item: t.key("x")})
			_, e3 := t.client.GetItem(t.ctx, &dynamodb.GetItemInput{TableName: nt, Key: t.key("x")})
			_, e4 := t.client.Query(t.ctx, &dynamodb.QueryInput{TableName: nt, KeyConditionExpression: new("pk = :p"), ExpressionAttributeValues: item{":p": text("x")}})
			_, e5 := t.client.UpdateItem(t.ctx, &dynamodb.UpdateItemInput{TableName: nt, Key: t.key("x"), UpdateExpression: new("SET a = :p"), ExpressionAttributeValues: item{":p": text("x")}})
			var bad []string
			for i, e := range []error{e1, e2, e3, e4, e5} {
				var rnf *types.ResourceNotFoundException
				if !errors.As(e, &rnf) {
					bad = append(bad, fmt.Sprintf("#%d %s", i+1, codeOf(e)))
				}
			}
			if bad != nil {
				return errors.New(strings.Join(bad, "; "))
			}
			return nil
		}},
	}
}
