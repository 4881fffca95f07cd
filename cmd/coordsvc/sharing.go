package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/keytype"
)

// How long a cache of sessions is in force after a node last said so. A node stops
// going through it long before another can take its place, so that no clock that is
// a little off lets the two overlap; and it goes on for as long as a copy counts, with
// the largest grace, after the tables stopped to answer.
const (
	sharingHeld  = 45 * time.Second
	sharingEnds  = 75 * time.Second
	sharingClock = 10 * time.Second // a clock that may be farther off than this does not take part
	sharingWait  = 2 * time.Second  // for the tables
)

// largestBound is how long any cache may answer with what was before a change.
const largestBound = 12*time.Second + maxStaleGrace*time.Millisecond

// errNoDeployment is met where the tables were emptied, or replaced by others.
var errNoDeployment = errors.New("the tables are not those that this process began with: the item of its deployment is gone, or another's")

// noCache is the name under which the nodes without a Redis are in force.
const noCache = "none"

// A sharing says which cache the nodes over one set of tables read sessions through.
// One is in force: those of its nodes alone go through their cache, and say that a
// change was propagated. The others read the tables, until nobody has said for
// sharingEnds that it is in force. So a node with another Redis, or without one, costs
// reads, and makes no answer wrong.
type sharing struct {
	client *dynamodb.Client
	table  string
	bound  time.Duration // how long after a change this node's cache may answer with what was before it; 0 without one
	id     string        // of the deployment; set before the first look
	now    func() time.Time

	mu    sync.Mutex
	asked time.Time     // when the tables were last asked with success; guarded by mu
	mine  bool          // this node's cache was in force then; guarded by mu
	other time.Duration // the bound of the cache that was; guarded by mu
	told  bool          // of another's; guarded by mu
}

func newSharing(client *dynamodb.Client, c config) *sharing {
	return &sharing{client: client, table: keytype.Deployment.TableName(c.tablePrefix), now: c.now}
}

// elsewhere is what sessions are told; see session.Elsewhere. What was heard too long ago
// is as nothing: any cache may be in force then.
func (s *sharing) elsewhere() (bool, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked.IsZero() || s.now().Sub(s.asked) >= sharingHeld {
		return true, largestBound
	}
	return !s.mine, s.other
}

// holds returns errNoDeployment where the tables answer and are not the deployment's.
func (s *sharing) holds(ctx context.Context) error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(passing(ctx), sharingWait)
	defer cancel()
	item, err := dynamo.Get(ctx, s.client, s.table, deploymentKey())
	if err != nil {
		return err
	}
	r := dynamo.Read(item, deploymentFormat)
	if id := r.Str("id"); r.Err() == nil && id != s.id {
		return errNoDeployment
	}
	return r.Err()
}

// renew says for the cache that it is in force, if it is or none is.
func (s *sharing) renew(ctx context.Context, cache string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(passing(ctx), sharingWait)
	defer cancel()
	at := s.now() // before the write: it holds no longer than others think
	result, err := dynamo.Update(ctx, s.client, dynamo.Change{
		Table: s.table, Key: deploymentKey(), Format: deploymentFormat,
		Set:       "#cache = :cache, #bound = :bound, #until = :until",
		Condition: "#id = :id AND (attribute_not_exists(#cache) OR #cache = :cache OR #until < :now)",
		Values: dynamo.Item{
			":id": dynamo.S(s.id), ":cache": dynamo.S(cache), ":bound": dynamo.N(s.bound.Milliseconds()),
			":now": dynamo.N(at.UnixMilli()), ":until": dynamo.N(at.Add(sharingEnds).UnixMilli()),
		},
	})
	if err != nil {
		return err
	}
	r := dynamo.Read(result.Item, deploymentFormat)
	id, bound := r.Str("id"), time.Duration(r.Int("bound"))*time.Millisecond
	if err := r.Err(); err != nil {
		return err
	}
	if id != s.id || !r.Has("until") {
		return errNoDeployment
	}
	s.learn(result.Applied, at, bound, log)
	return nil
}

func (s *sharing) learn(mine bool, at time.Time, bound time.Duration, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.mine, s.other = at, mine, bound
	switch {
	case !mine && !s.told:
		log.Warn("sessions are read from the tables: other nodes on them use another Redis, none, or another COORD_SESSION_STALE_GRACE_MS; give all the same")
	case mine && s.told:
		log.Info("sessions are read through this node's Redis, if it has one, again")
	}
	s.told = !mine
}
