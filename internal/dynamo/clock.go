package dynamo

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	clockWindow = 30 * time.Second // answers of so long are taken together
	clockAge    = time.Minute      // after so long without an answer nothing is known
)

// A Clock knows how far this node's clock is from DynamoDB's, within bounds. An answer
// carries the second in which it was made, and that lies between sending and
// receiving: so the offset is in an interval of a second and the round trip, and the
// intervals of several answers have it in common.
type Clock struct {
	now func() time.Time

	mu       sync.Mutex // guards the rest
	current  interval
	previous interval
	began    time.Time // the current window
	last     time.Time // the latest answer
}

// An interval is where the offset, node minus DynamoDB, lies.
type interval struct {
	low, high time.Duration
	known     bool
}

func (i interval) intersect(j interval) interval {
	if !i.known {
		return j
	}
	if !j.known {
		return i
	}
	return interval{max(i.low, j.low), min(i.high, j.high), true}
}

func (i interval) empty() bool { return i.known && i.low > i.high }

// NewClock makes one for a node with this clock.
func NewClock(now func() time.Time) *Clock { return &Clock{now: now} }

// Listen is the option that has a client's answers observed.
func (c *Clock) Listen(o *dynamodb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("coordsvc:clock",
			func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
				sent := c.now()
				out, metadata, err := next.HandleDeserialize(ctx, in)
				if r, ok := out.RawResponse.(*smithyhttp.Response); ok {
					if date, dateErr := http.ParseTime(r.Header.Get("Date")); dateErr == nil {
						c.observe(sent, c.now(), date)
					}
				}
				return out, metadata, err
			}), middleware.After)
	})
}

// observe takes in an answer with the date, between sent and received by this clock.
func (c *Clock) observe(sent, received, date time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := interval{sent.Sub(date) - time.Second, received.Sub(date), true}
	if received.Sub(c.began) > clockWindow {
		c.previous, c.current, c.began = c.current, interval{}, received
	}
	c.last = received
	c.current = c.current.intersect(seen)
	if c.current.intersect(c.previous).empty() { // one of the clocks was set
		c.current, c.previous = seen, interval{}
	}
}

// Within reports whether the offset is known to be at most d in either direction.
func (c *Clock) Within(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.current.intersect(c.previous)
	return i.known && c.now().Sub(c.last) < clockAge && i.low >= -d && i.high <= d
}
