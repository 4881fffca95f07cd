package quota

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // zones mean the same on machines that have no zone files

	"github.com/coordsvc/coordsvc/keytype"
)

// A Window says when the used units of a quota begin again at zero.
type Window string

// The windows that are not of a fixed length, which [Every] makes.
const (
	None  Window = "none"  // never
	Day   Window = "day"   // when a new day begins in the quota's zone
	Month Window = "month" // when a new month begins there
)

// Bounds of a window of a fixed length.
const (
	MinEvery = 100 * time.Millisecond
	MaxEvery = 366 * 24 * time.Hour
)

const everyPrefix = "ms:"

// Every is a window of a fixed length, MinEvery to MaxEvery in whole
// milliseconds. The first began on 1970-01-01 UTC, whatever the quota's zone.
func Every(length time.Duration) Window {
	return Window(everyPrefix + strconv.FormatInt(length.Milliseconds(), 10))
}

// Length is the fixed length, false where the window has none.
func (w Window) Length() (time.Duration, bool) {
	digits, ok := strings.CutPrefix(string(w), everyPrefix)
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil {
		return 0, false
	}
	return time.Duration(n) * time.Millisecond, true
}

func (w Window) check() error {
	if w == None || w == Day || w == Month {
		return nil
	}
	length, ok := w.Length()
	if !ok {
		return &keytype.ValueError{Field: "window", Reason: `must be "none", "day", "month" or {"ms": n}`}
	}
	return keytype.CheckRange("window", length.Milliseconds(), MinEvery.Milliseconds(), MaxEvery.Milliseconds())
}

// A Frame is one window of a quota: one day, one month.
type Frame struct {
	ID     string    `json:"id"` // of this window among all that the quota may ever have
	Window Window    `json:"window"`
	Zone   string    `json:"zone"`
	Ends   time.Time `json:"ends"` // zero = never
}

// Frame is the window that the instant belongs to. A day begins with the first
// instant that a calendar in the zone calls that day or a later one, also where
// the clock jumps over midnight or back over it: every instant belongs to one
// day, and a later instant never to an earlier day. The error,
// keytype.ErrUnavailable, is a zone that this machine does not know.
func (d Definition) Frame(now time.Time) (Frame, error) {
	f := Frame{Window: d.Window, Zone: d.Zone}
	if d.Window == None {
		f.ID = string(None)
		return f, nil
	}
	if length, ok := d.Window.Length(); ok {
		n := now.UnixMilli() / length.Milliseconds()
		f.ID = fmt.Sprintf("%s/%d", d.Window, n)
		f.Ends = time.UnixMilli((n + 1) * length.Milliseconds()).UTC()
		return f, nil
	}
	zone, err := location(d.Zone)
	if err != nil {
		return Frame{}, fmt.Errorf("zone %q: %w: %w", d.Zone, keytype.ErrUnavailable, err)
	}
	var begins date
	begins, f.Ends = d.Window.around(now, zone)
	f.ID = fmt.Sprintf("%s/%s/%s", d.Window, d.Zone, begins.format(d.Window))
	return f, nil
}

// A date of the calendar; its day may be beyond the month's last.
type date struct {
	year  int
	month time.Month
	day   int
}

// around finds the date that the window of now begins with, and the instant it ends at.
func (w Window) around(now time.Time, zone *time.Location) (begins date, ends time.Time) {
	begins.year, begins.month, begins.day = now.In(zone).Date()
	if w == Month {
		begins.day = 1
	}
	for {
		next := begins
		if w == Month {
			next.month++
		} else {
			next.day++
		}
		ends = next.start(zone)
		if ends.After(now) {
			return begins, ends
		}
		begins = next // the clock went back over midnight, or the calendar left a day out
	}
}

// start is the first instant whose date in the zone is d or later.
func (d date) start(zone *time.Location) time.Time {
	midnight := time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC)
	from := midnight.Add(-36 * time.Hour) // before d in every zone there ever was
	for {
		at := from.In(zone)
		_, offset := at.Zone()
		_, until := at.ZoneBounds()
		if !until.IsZero() && !until.After(from) { // Go has a zone's rules end before the last day of a leap year
			until = from.Add(24 * time.Hour)
		}
		start := midnight.Add(-time.Duration(offset) * time.Second)
		switch {
		case start.Before(from):
			return from.UTC() // the clock jumped over midnight here
		case until.IsZero() || start.Before(until):
			return start
		}
		from = until
	}
}

func (d date) format(w Window) string {
	day := time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC)
	if w == Month {
		return day.Format("2006-01")
	}
	return day.Format(time.DateOnly)
}

// locations are the zones in use: reading one opens a file.
var locations sync.Map // string to *time.Location; no more than there are zones

func location(name string) (*time.Location, error) {
	if zone, ok := locations.Load(name); ok {
		return zone.(*time.Location), nil //nolint:forcetypeassert // nothing else is stored
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	locations.Store(name, zone)
	return zone, nil
}
