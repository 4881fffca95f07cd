package dynamolease_test

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/fencing/dynamofence"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
)

// Leases that many nodes share. `coordsvc tables create` or infra/terraform makes the
// tables; the guard is for clocks that differ.
func Example() {
	ctx := context.Background()
	settings, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return
	}
	client := dynamodb.NewFromConfig(settings)
	leases := lease.New(dynamolease.New(client, "coord_"), lease.Options{Guard: 2 * time.Second})
	fences := fencing.New(dynamofence.New(client, "coord_"))
	_ = lease.RunOne(ctx, leases, "acme", "nightly-report", lease.AcquireRequest{Owner: "node-1", TTL: time.Minute},
		func(ctx context.Context, token fencing.Token) error {
			_, err := fences.Admit(ctx, "acme", "nightly-report", fencing.Position{Token: token})
			return err
		})
}
