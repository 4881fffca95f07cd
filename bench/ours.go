package main

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/lease"
	"github.com/coordsvc/coordsvc/lease/dynamolease"
)

// ours are leases, without a request id: a caller who has one can also ask again.
type ours struct {
	leases *lease.Manager
	grants map[[2]string]lease.Holder // by key and owner
}

const tablePrefix = "bench_"

// newOurs makes the table, with the SDK's own retries.
func newOurs(ctx context.Context, endpoint string) (*ours, error) {
	client := dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint,
		Credentials: credentials.NewStaticCredentialsProvider("AKIDLOCAL", "secret", ""),
	})
	if err := dynamo.Create(ctx, client, dynamolease.Table(tablePrefix)); err != nil {
		return nil, err
	}
	store := dynamolease.New(client, tablePrefix)
	if err := store.RefreshFloor(ctx); err != nil { // a node reads it once for many grants
		return nil, err
	}
	return &ours{lease.New(store, lease.Options{}), map[[2]string]lease.Holder{}}, nil
}

func (o *ours) acquire(ctx context.Context, key, owner string, wait bool) (bool, error) {
	req := lease.AcquireRequest{Owner: owner, TTL: lockTTL}
	if wait {
		req.Wait = lease.MaxWait
	}
	g, err := o.leases.Acquire(ctx, "bench", key, req)
	if _, held := errors.AsType[*lease.HeldError](err); held {
		return false, nil
	}
	o.grants[[2]string{key, owner}] = lease.Holder{ID: g.ID, Token: g.Token}
	return err == nil, err
}

func (o *ours) renew(ctx context.Context, key, owner string) (bool, error) {
	_, err := o.leases.Renew(ctx, "bench", key, o.grants[[2]string{key, owner}], lockTTL)
	return refusable(err)
}

func (o *ours) release(ctx context.Context, key, owner string) (bool, error) {
	return refusable(o.leases.Release(ctx, "bench", key, o.grants[[2]string{key, owner}]))
}

func refusable(err error) (bool, error) {
	if errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrExpired) {
		return false, nil
	}
	return err == nil, err
}
