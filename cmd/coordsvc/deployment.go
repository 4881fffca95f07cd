package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/coordsvc/coordsvc/internal/auth"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/keytype"
)

// errOtherKeys ends a process that would look for users where they are not.
var errOtherKeys = errors.New("COORD_KEYS_FILE (--keys-file): its route key is not the one that the stored sessions were written under, so that no session would be found and no revocation would take effect; give every node the same file")

// A deployment names the data of one set of tables, or of one data folder. Whoever
// comes first makes it; it stays as long as they do.
type deployment struct {
	ID    string `json:"id"`    // random
	Check string `json:"check"` // of the route key, which it does not give away
}

const (
	deploymentName   = "deployment" // the one there is
	deploymentFormat = 1
)

func newDeployment(route []byte) deployment {
	id := rand.Text()
	return deployment{id, keyed(route, "check of the route key "+id)}
}

// opensWith returns errOtherKeys for another route key than the first process had.
func (d deployment) opensWith(route []byte) error {
	if d.Check != keyed(route, "check of the route key "+d.ID) {
		return errOtherKeys
	}
	return nil
}

// keyed is a hash that only who has the key can make, and tell from others.
func keyed(key []byte, of string) string {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(of))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// deployment reads whose data the stores hold, or says whose they hold from now on.
func (s stores) deployment(ctx context.Context, c config, route []byte) (d deployment, err error) {
	if s.tables != nil {
		d, err = s.deploymentInTables(ctx, c, newDeployment(route))
	} else {
		d, err = deploymentInFile(ctx, s.file, newDeployment(route))
	}
	if err != nil {
		return deployment{}, fmt.Errorf("look whose data this is: %w", err)
	}
	return d, d.opensWith(route)
}

func (s stores) deploymentInTables(ctx context.Context, c config, first deployment) (deployment, error) {
	result, err := dynamo.Update(ctx, s.tables, dynamo.Change{
		Table: keytype.Deployment.TableName(c.tablePrefix), Key: deploymentKey(), Format: deploymentFormat,
		Set:       "#id = :id, #check = :check",
		Condition: "attribute_not_exists(#id)",
		Values:    dynamo.Item{":id": dynamo.S(first.ID), ":check": dynamo.S(first.Check)},
	})
	if err != nil {
		return deployment{}, err
	}
	r := dynamo.Read(result.Item, deploymentFormat)
	d := deployment{ID: r.Str("id"), Check: r.Str("check")}
	if err := r.Err(); err != nil {
		return deployment{}, fmt.Errorf("the item of the deployment: %w", err)
	}
	return d, nil
}

func deploymentKey() dynamo.Item {
	pk, sk := keytype.Deployment.ItemKey(deploymentName)
	return dynamo.Item{"pk": dynamo.S(pk), "sk": dynamo.S(sk)}
}

func deploymentInFile(ctx context.Context, file kv.Store, first deployment) (d deployment, err error) {
	bucket, key := keytype.Deployment.Bucket(), keytype.Deployment.Key(deploymentName)
	err = file.Update(ctx, func(tx kv.Tx) error {
		var found bool
		if d, found, err = kv.Load[deployment](tx, bucket, key); err != nil || found {
			return err
		}
		d = first
		return kv.Save(tx, bucket, key, d, time.Time{})
	})
	return d, err
}

// closed is the store of API keys of a process that does not know yet whether the
// data is its own: nobody is authenticated, so that nothing is decided.
type closed struct {
	auth.Store
	opened <-chan struct{}
}

var errNotOpened = fmt.Errorf("the process has not found out yet whose data this is: %w", keytype.ErrUnavailable)

// Get implements auth.Store.
func (s closed) Get(ctx context.Context, id string) (auth.Record, bool, error) {
	select {
	case <-s.opened:
		return s.Store.Get(ctx, id)
	default:
		return auth.Record{}, false, errNotOpened
	}
}
