package dynamofence_test

import (
	"fmt"
	"maps"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
)

// A service that keeps its orders in DynamoDB has them refuse a stale worker: the
// guard goes into the write that it makes anyway.
func ExampleCondition() {
	ship := func(order string, token fencing.Token) *dynamodb.UpdateItemInput {
		guard := dynamofence.Condition(token)
		in := &dynamodb.UpdateItemInput{
			TableName:                aws.String("orders"),
			Key:                      map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: order}},
			UpdateExpression:         aws.String("SET #state = :shipped, " + guard.Set),
			ConditionExpression:      aws.String("#state = :paid AND " + guard.Condition),
			ExpressionAttributeNames: map[string]string{"#state": "state"},
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":paid":    &types.AttributeValueMemberS{Value: "paid"},
				":shipped": &types.AttributeValueMemberS{Value: "shipped"},
			},
		}
		maps.Copy(in.ExpressionAttributeNames, guard.Names)
		maps.Copy(in.ExpressionAttributeValues, guard.Values)
		return in
	}
	in := ship("o-17", 34) // then: _, err := client.UpdateItem(ctx, in), and dynamofence.Refused(err)
	fmt.Println(*in.UpdateExpression)
	fmt.Println(*in.ConditionExpression)
	// Output:
	// SET #state = :shipped, #fencing_token = :fencing_token
	// #state = :paid AND (attribute_not_exists(#fencing_token) OR #fencing_token <= :fencing_token)
}
