package browser_test

import (
	"bytes"
	"image"
	"image/color"
	"image/gif"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/browser"
)

// TestAFilmHoldsWhatChanges: the same picture is shown longer, and a frame covers only what differs from the previous.
func TestAFilmHoldsWhatChanges(t *testing.T) {
	t.Parallel()
	white, red := color.RGBA{R: 255, G: 255, B: 255, A: 255}, color.RGBA{R: 255, A: 255}
	picture := func(dots ...image.Point) *image.RGBA {
		p := image.NewRGBA(image.Rect(0, 0, 40, 30))
		for i := range 40 * 30 {
			p.SetRGBA(i%40, i/40, white)
		}
		for _, d := range dots {
			p.SetRGBA(d.X, d.Y, red)
		}
		return p
	}
	var f browser.Film
	f.Add(picture(), time.Second)
	f.Add(picture(), 500*time.Millisecond)
	f.Add(picture(image.Pt(3, 4), image.Pt(9, 6)), 2*time.Second)
	b, err := f.GIF()
	require.NoError(t, err)
	got, err := gif.DecodeAll(bytes.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, []int{150, 200}, got.Delay)
	require.Zero(t, got.LoopCount, "it repeats")
	require.Equal(t, image.Rect(0, 0, 40, 30), got.Image[0].Bounds())
	require.Equal(t, image.Rect(3, 4, 10, 7), got.Image[1].Bounds())
	for at, want := range map[image.Point]color.RGBA{{X: 3, Y: 4}: red, {X: 9, Y: 6}: red, {X: 5, Y: 5}: white} {
		require.Equal(t, want, color.RGBAModel.Convert(got.Image[1].At(at.X, at.Y)), at)
	}
}
