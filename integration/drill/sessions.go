package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/coordsvc/coordsvc/api"
	"github.com/coordsvc/coordsvc/client"
)

// sessions log in, are verified, and are revoked.
type sessions struct {
	*pillar

	ledger sync.Mutex // guards the rest
	ended  []ended
	logins int
	worst  time.Duration // of the staleness
	lost   int           // revocations that a verify did not see in time
}

// An ended session is one whose revocation was acknowledged.
type ended struct {
	token string
	how   string
	at    time.Time // when the acknowledgement was there
}

// live is the life of one session.
func (s *sessions) live(ctx context.Context, d *Drill, worker int) {
	var created api.CreatedSession
	user := fmt.Sprintf("u%d-%d", worker, rand.Uint64())
	if s.call(func() (err error) {
		created, err = d.node().CreateSession(ctx, api.CreateSession{UserID: user})
		return err
	}) != nil {
		pause(50 * time.Millisecond)
		return
	}
	s.ledger.Lock()
	s.logins++
	s.ledger.Unlock()
	for range 3 {
		active, err := s.verify(ctx, d.node(), created.Token)
		if err == nil && !active {
			s.breaks("an acknowledged login of " + user + " was refused")
		}
		pause(20 * time.Millisecond)
	}
	end := ended{token: created.Token, how: "revoke"}
	if s.call(func() (err error) {
		if rand.N(2) == 0 {
			end.how = "logout-all"
			_, err = d.node().LogoutAll(ctx, user, api.LogoutAll{})
			return err
		}
		_, err = d.node().RevokeSession(ctx, created.Token)
		return err
	}) != nil {
		return // nobody knows: nothing was promised
	}
	end.at = time.Now()
	s.ledger.Lock()
	s.ended = append(s.ended, end)
	s.ledger.Unlock()
	for _, node := range d.nodes {
		_ = s.judge(ctx, node, end) // who asks often need not be answered each time
	}
}

// ask verifies a session whose revocation may still be on its way.
func (s *sessions) ask(ctx context.Context, d *Drill, _ int) {
	s.ledger.Lock()
	var young []ended
	for i := len(s.ended) - 1; i >= 0 && time.Since(s.ended[i].at) < Staleness+4*time.Second; i-- {
		young = append(young, s.ended[i])
	}
	s.ledger.Unlock()
	if len(young) > 0 {
		_ = s.judge(ctx, d.node(), young[rand.IntN(len(young))])
	}
	pause(15 * time.Millisecond)
}

func (s *sessions) verify(ctx context.Context, node *client.Client, token string) (active bool, err error) {
	err = s.call(func() error {
		v, err := node.VerifySession(ctx, api.VerifySession{Token: token})
		active = v.Active
		return err
	})
	return active, err
}

// judge verifies an ended session: how long after the acknowledgement is it still active?
func (s *sessions) judge(ctx context.Context, node *client.Client, end ended) error {
	begun := time.Now()
	active, err := s.verify(ctx, node, end.token)
	if err != nil || !active {
		return err
	}
	stale := begun.Sub(end.at)
	s.ledger.Lock()
	s.worst = max(s.worst, stale)
	late := stale > Staleness
	if late {
		s.lost++
	}
	s.ledger.Unlock()
	if late {
		s.breaks(fmt.Sprintf("a session is active %v after its %s was acknowledged", stale.Round(time.Millisecond), end.how))
	}
	return nil
}

// settle asks for every revocation once more, when all are due.
func (s *sessions) settle(ctx context.Context, d *Drill) {
	if n := len(s.ended); n > 0 {
		time.Sleep(time.Until(s.ended[n-1].at.Add(Staleness + time.Second)))
	}
	var wg sync.WaitGroup
	next := make(chan ended)
	for range 8 {
		wg.Go(func() {
			for end := range next {
				if err := d.persist(ctx, func(c *client.Client) error { return s.judge(ctx, c, end) }); err != nil {
					s.breaks("nobody says whether a revoked session is active: " + err.Error())
				}
			}
		})
	}
	for _, end := range s.ended {
		next <- end
	}
	close(next)
	wg.Wait()
}

func (s *sessions) facts() string {
	return strings.Join([]string{
		fmt.Sprintf("%d logins and %d revocations acknowledged", s.logins, len(s.ended)),
		fmt.Sprintf("worst staleness %v (promised %v)", s.worst.Round(time.Millisecond), Staleness),
		fmt.Sprintf("lost revocations %d", s.lost),
	}, "; ")
}
