package prego_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// TestCronIsAsCrontabHasIt: crontab(5), section "Extensions" among others.
func TestCronIsAsCrontabHasIt(t *testing.T) {
	t.Parallel()
	after := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC) // a Wednesday
	for text, want := range map[string]string{
		"0 2 * * *": "26 Thu 02:00", "30 4 1 * *": "01 Tue 04:30", "0 0 * * 0": "29 Sun 00:00", "0 0 * * 7": "29 Sun 00:00",
		"0 0 * * sun": "29 Sun 00:00", "0 0 * * 5-7": "27 Fri 00:00", "0 0 * * 6,7": "28 Sat 00:00", "0 0 * * 1-7/6": "29 Sun 00:00",
		"0 0 13 * 5": "27 Fri 00:00", "0 0 1 JAN *": "01 Fri 00:00", "*/15 * * * *": "25 Wed 12:15", "0\t3  * * *": "26 Thu 03:00",
		"0 0 */2 * 1": "07 Mon 00:00", "0 0 13 * */5": "13 Sun 00:00", "0 0 * * */5": "27 Fri 00:00",
	} {
		s, err := prego.ParseCron(text)
		require.NoError(t, err, text)
		require.Equal(t, want, s.Next(after).Format("02 Mon 15:04"), text)
	}
	for text, want := range map[string]string{
		"TZ=Asia/Kolkata 0 2 * * *": "in UTC", "CRON_TZ=UTC 0 2 * * *": "in UTC", "@daily": "@-words", "@every 1h": "@-words",
		"0 2 * *": "five fields", "0 0 2 * * *": "five fields", "": "five fields", "0 24 * * *": "the hour can't be 24", "0 0 * * 8": "the day of the week can't be 8",
		"0 0 * * fri-mon": "the day of the week can't be fri-mon", "0 0 * * 1-7/0": "the day of the week can't be 1-7/0", "x * * * *": "the minute can't be x",
		"0 0 32 * *": "the day of the month can't be 32", "0 0 * 1e1 *": "the month can't be 1e1: write *, values such as 1 or JAN,JUL (1 to 12)",
		"0, 2 * * *": "empty part", "0,,30 * * * *": "empty part", ", * * * *": "empty part",
	} {
		_, err := prego.ParseCron(text)
		require.ErrorContains(t, err, want, text)
	}
}
