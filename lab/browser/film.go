package browser

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/draw"
	"image/gif"
	"slices"
	"time"
)

// Film is an animated picture: pages, one after the other.
type Film struct {
	frames []image.Image
	shown  []time.Duration
}

// Add shows another picture for a time; the same one again is shown longer.
func (f *Film) Add(picture image.Image, shown time.Duration) {
	if n := len(f.frames); n > 0 && changed(f.frames[n-1], picture, picture.Bounds()).Empty() {
		f.shown[n-1] += shown
		return
	}
	f.frames, f.shown = append(f.frames, picture), append(f.shown, shown)
}

// GIF is the film as a file that repeats, as large as the largest picture. A frame holds only what differs from the
// previous one. A page has few colours: the most frequent 256 are kept, and others become the nearest of these.
func (f *Film) GIF() ([]byte, error) {
	var (
		out gif.GIF
		b   bytes.Buffer
	)
	palette, bounds := paletteOf(f.frames), image.Rectangle{}
	for _, frame := range f.frames {
		bounds = bounds.Union(frame.Bounds())
	}
	for i, frame := range f.frames {
		part := bounds
		if i > 0 {
			part = changed(f.frames[i-1], frame, bounds)
		}
		p := image.NewPaletted(part, palette)
		draw.Draw(p, part, frame, part.Min, draw.Src)
		out.Image, out.Delay = append(out.Image, p), append(out.Delay, int(f.shown[i]/(10*time.Millisecond)))
		out.Disposal = append(out.Disposal, gif.DisposalNone)
	}
	out.Config = image.Config{ColorModel: palette, Width: bounds.Dx(), Height: bounds.Dy()}
	err := gif.EncodeAll(&b, &out)
	return b.Bytes(), err
}

// changed is the smallest rectangle of two pictures that holds all their differences.
func changed(a, b image.Image, bounds image.Rectangle) (out image.Rectangle) {
	if a.Bounds() != b.Bounds() {
		return bounds
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if a.At(x, y) != b.At(x, y) {
				out = out.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return out
}

func paletteOf(frames []image.Image) color.Palette {
	count := map[color.Color]int{}
	for _, frame := range frames {
		b := frame.Bounds()
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				count[frame.At(x, y)]++
			}
		}
	}
	var p color.Palette
	for c := range count {
		p = append(p, c)
	}
	slices.SortFunc(p, func(a, b color.Color) int {
		if n := cmp.Compare(count[b], count[a]); n != 0 {
			return n
		}
		ar, ag, ab, _ := a.RGBA()
		br, bg, bb, _ := b.RGBA()
		return cmp.Or(cmp.Compare(ar, br), cmp.Compare(ag, bg), cmp.Compare(ab, bb))
	})
	return p[:min(len(p), 256)]
}
