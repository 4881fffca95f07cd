package quota_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coordsvc/coordsvc/quota"
)

// A failer is a test, or a try of rapid's.
type failer interface {
	Helper()
	Fatal(args ...any)
}

func instant(t failer, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func frame(t failer, w quota.Window, zone string, now time.Time) quota.Frame {
	t.Helper()
	f, err := quota.Definition{Window: w, Zone: zone}.Frame(now)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Years in which the zone databases are settled.
func TestFrames(t *testing.T) {
	for _, c := range []struct {
		why    string
		window quota.Window
		zone   string
		now    string
		id     string
		ends   string // empty = never
	}{
		{"never", quota.None, "UTC", "2026-03-01T12:00:00Z", "none", ""},
		{"a day", quota.Day, "UTC", "2026-03-01T12:00:00Z", "day/UTC/2026-03-01", "2026-03-02T00:00:00Z"},
		{"its first instant", quota.Day, "UTC", "2026-03-01T00:00:00Z", "day/UTC/2026-03-01", "2026-03-02T00:00:00Z"},
		{"its last", quota.Day, "UTC", "2026-03-01T23:59:59.999Z", "day/UTC/2026-03-01", "2026-03-02T00:00:00Z"},
		{"a day that began yesterday in UTC", quota.Day, "Asia/Tokyo", "2026-03-01T15:00:00Z", "day/Asia/Tokyo/2026-03-02", "2026-03-02T15:00:00Z"},
		{"a day 14 h ahead", quota.Day, "Pacific/Kiritimati", "2026-03-01T10:00:00Z", "day/Pacific/Kiritimati/2026-03-02", "2026-03-02T10:00:00Z"},
		{"a day 12 h behind", quota.Day, "Etc/GMT+12", "2026-03-01T11:59:59Z", "day/Etc/GMT+12/2026-02-28", "2026-03-01T12:00:00Z"},
		{"a leap year's day", quota.Day, "UTC", "2024-02-28T12:00:00Z", "day/UTC/2024-02-28", "2024-02-29T00:00:00Z"},
		{"the day after it", quota.Day, "UTC", "2024-02-29T12:00:00Z", "day/UTC/2024-02-29", "2024-03-01T00:00:00Z"},
		{"a day of 23 h", quota.Day, "Europe/Berlin", "2026-03-28T23:00:00Z", "day/Europe/Berlin/2026-03-29", "2026-03-29T22:00:00Z"},
		{"a day of 25 h", quota.Day, "Europe/Berlin", "2026-10-24T22:00:00Z", "day/Europe/Berlin/2026-10-25", "2026-10-25T23:00:00Z"},
		{"its repeated hour", quota.Day, "Europe/Berlin", "2026-10-25T01:30:00Z", "day/Europe/Berlin/2026-10-25", "2026-10-25T23:00:00Z"},
		{"the clock jumps over midnight: before", quota.Day, "America/Sao_Paulo", "2018-11-04T02:59:59Z", "day/America/Sao_Paulo/2018-11-03", "2018-11-04T03:00:00Z"},
		{"and after, at 01:00", quota.Day, "America/Sao_Paulo", "2018-11-04T03:00:00Z", "day/America/Sao_Paulo/2018-11-04", "2018-11-05T02:00:00Z"},
		{"midnight comes twice: the first counts", quota.Day, "America/Havana", "2024-11-03T03:59:59Z", "day/America/Havana/2024-11-02", "2024-11-03T04:00:00Z"},
		{"and the second is the same day", quota.Day, "America/Havana", "2024-11-03T05:00:00Z", "day/America/Havana/2024-11-03", "2024-11-04T05:00:00Z"},
		{"back over midnight at 00:01: the day has begun", quota.Day, "America/St_Johns", "2010-11-07T02:30:30Z", "day/America/St_Johns/2010-11-07", "2010-11-08T03:30:00Z"},
		{"and does not end when the calendar says the day before", quota.Day, "America/St_Johns", "2010-11-07T02:45:00Z", "day/America/St_Johns/2010-11-07", "2010-11-08T03:30:00Z"},
		{"a calendar without 30 December", quota.Day, "Pacific/Apia", "2011-12-30T09:59:59Z", "day/Pacific/Apia/2011-12-29", "2011-12-30T10:00:00Z"},
		{"goes on with the 31st", quota.Day, "Pacific/Apia", "2011-12-30T10:00:00Z", "day/Pacific/Apia/2011-12-31", "2011-12-31T10:00:00Z"},
		{"a leap year's last day", quota.Day, "Europe/Berlin", "2040-12-31T12:00:00Z", "day/Europe/Berlin/2040-12-31", "2040-12-31T23:00:00Z"},
		{"and last month", quota.Month, "America/New_York", "2028-12-31T12:00:00Z", "month/America/New_York/2028-12", "2029-01-01T05:00:00Z"},
		{"a month", quota.Month, "UTC", "2026-02-28T23:59:59Z", "month/UTC/2026-02", "2026-03-01T00:00:00Z"},
		{"a leap year's", quota.Month, "UTC", "2024-02-29T23:59:59Z", "month/UTC/2024-02", "2024-03-01T00:00:00Z"},
		{"its 31st", quota.Month, "UTC", "2026-01-31T12:00:00Z", "month/UTC/2026-01", "2026-02-01T00:00:00Z"},
		{"the year's last", quota.Month, "UTC", "2026-12-31T23:59:59.999Z", "month/UTC/2026-12", "2027-01-01T00:00:00Z"},
		{"a month in which the clock changes", quota.Month, "America/New_York", "2026-03-01T05:00:00Z", "month/America/New_York/2026-03", "2026-04-01T04:00:00Z"},
		{"the instant before it", quota.Month, "America/New_York", "2026-03-01T04:59:59Z", "month/America/New_York/2026-02", "2026-03-01T05:00:00Z"},
		{"a fixed length", quota.Every(time.Minute), "UTC", "2026-03-01T12:00:59.999Z", "ms:60000/29539440", "2026-03-01T12:01:00Z"},
		{"the zone does not move it", quota.Every(24 * time.Hour), "Asia/Tokyo", "2026-03-01T15:00:00Z", "ms:86400000/20513", "2026-03-02T00:00:00Z"},
	} {
		f := frame(t, c.window, c.zone, instant(t, c.now))
		ends := ""
		if !f.Ends.IsZero() {
			ends = f.Ends.Format(time.RFC3339)
		}
		if f.ID != c.id || ends != c.ends {
			t.Errorf("%s: %s is in %s until %q, want %s until %q", c.why, c.now, f.ID, ends, c.id, c.ends)
		}
	}
}

// Windows follow each other without a gap: the instant before the end belongs to
// this one, the end to another, and no id comes back.
func TestFramesFollowEachOther(t *testing.T) {
	zones := []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "America/Havana", "America/Sao_Paulo", "Pacific/Apia", "Africa/Cairo", "Asia/Beirut",
		"Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "America/Nuuk", "Antarctica/Troll", "Pacific/Kwajalein", "Asia/Manila", "America/Scoresbysund", "Atlantic/Azores",
	}
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom([]quota.Window{quota.Day, quota.Day, quota.Month, quota.Every(7 * time.Hour)}).Draw(t, "window")
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		now := time.Unix(rapid.Int64Range(0, 4_000_000_000).Draw(t, "second"), 0).UTC()
		seen := map[string]bool{}
		for range 40 {
			f := frame(t, w, zone, now)
			if seen[f.ID] || !f.Ends.After(now) {
				t.Fatalf("%s is in %s until %s, after %v", now, f.ID, f.Ends, seen)
			}
			seen[f.ID] = true
			for _, at := range []time.Time{now.Add(f.Ends.Sub(now) / 2), f.Ends.Add(-time.Millisecond)} {
				if same := frame(t, w, zone, at); same != f {
					t.Fatalf("%s is in %+v, %s in %+v", now, f, at, same)
				}
			}
			now = f.Ends
		}
	})
}

func TestAZoneThatThisMachineDoesNotKnow(t *testing.T) {
	if f, err := (quota.Definition{Window: quota.Day, Zone: "Mars/Olympus"}).Frame(time.Now()); err == nil {
		t.Errorf("it is %+v there", f)
	}
}
