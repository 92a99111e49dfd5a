package prego

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

var fiveFields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// ParseCron reads a cron expression of five fields, as crontab(5) does: names of months and days, and 7 for Sunday.
// Times are in UTC. Time zones, which make days of 23 hours, and words such as @daily are refused.
func ParseCron(text string) (cron.Schedule, error) {
	fields := strings.Fields(text)
	switch {
	case strings.Contains(text, "TZ="):
		return nil, errors.New("times are in UTC: leave the time zone out")
	case strings.HasPrefix(text, "@"):
		return nil, errors.New("@-words are not accepted: write 0 2 * * * for every day at 02:00 UTC")
	case len(fields) != 5:
		return nil, errors.New("it must have five fields: minute, hour, day of month, month, day of week")
	}
	for _, field := range fields {
		if slices.Contains(strings.Split(field, ","), "") {
			return nil, fmt.Errorf("%s has an empty part: leave out the comma", field)
		}
	}
	fields[4] = sundays(fields[4])
	s, err := fiveFields.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, wrongField(text)
	}
	if spec, ok := s.(*cron.SpecSchedule); ok {
		spec.Location = time.UTC
		// Days that match one of both fields count, unless a field begins with *; the parser forgets */2.
		spec.Dom, spec.Dow = starred(fields[2], spec.Dom), starred(fields[4], spec.Dow)
	}
	return s, nil
}

// wrongField names the first field that can't be read; the parser's errors are its own and strconv's.
func wrongField(text string) error {
	for i, field := range strings.Fields(text) {
		alone := []string{"*", "*", "*", "*", "*"}
		alone[i] = field
		if i == 4 {
			alone[i] = sundays(field)
		}
		if _, err := fiveFields.Parse(strings.Join(alone, " ")); err != nil {
			return fmt.Errorf("the %s can't be %s: write *, values such as %s, a range a-b in that order, or */n", cronFields[i].name, field, cronFields[i].values)
		}
	}
	return errors.New("it can't be read")
}

var cronFields = [5]struct{ name, values string }{
	{"minute", "0 or 0,30 (0 to 59)"},
	{"hour", "2 or 2,14 (0 to 23)"},
	{"day of the month", "1 or 1,15 (1 to 31)"},
	{"month", "1 or JAN,JUL (1 to 12)"},
	{"day of the week", "1 or MON,FRI (0 to 7)"},
}

// starred marks the days of a field that begins with *, as the parser marks those of *.
func starred(field string, days uint64) uint64 {
	if strings.HasPrefix(field, "*") {
		days |= 1 << 63
	}
	return days
}

// sundays writes 7 as 0 in a field of days of the week. What is no list of days stays as it is, for the parser.
func sundays(field string) string {
	parts := strings.Split(field, ",")
	for i, part := range parts {
		days, every, stepped := strings.Cut(part, "/")
		first, last, ranged := strings.Cut(days, "-")
		step, err := strconv.Atoi(every)
		if !stepped {
			step, err = 1, nil
		}
		from, err1 := strconv.Atoi(first)
		switch {
		case first == "7" && !ranged && !stepped:
			parts[i] = "0"
		case !ranged || last != "7" || err != nil || err1 != nil || step < 1 || from < 0 || from > 7:
		default:
			var all []string
			for day := from; day <= 7; day += step {
				all = append(all, strconv.Itoa(day%7))
			}
			parts[i] = strings.Join(all, ",")
		}
	}
	return strings.Join(parts, ",")
}
