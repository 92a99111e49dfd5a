package supervise

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
)

// FeedFlag makes a supervisor pass its input on, see Feed.
const FeedFlag = "--feed"

// InputFlag is how a supervisor reads an input, nil for none.
func InputFlag(input io.Reader) string {
	if input != nil {
		return FeedFlag
	}
	return "--input"
}

// feedChunk is how many bytes a line of Feed has.
const feedChunk = 32 << 10

// endOfFeed is the line after the last one: the supervisor's own input stays open, since its
// end means something else.
const endOfFeed = "."

// Feed writes a command's input for its supervisor, as lines of base64; empty lines between them show that the caller
// is alive.
func Feed(w io.Writer, from io.Reader) error {
	buf, line := make([]byte, feedChunk), make([]byte, 0, base64.StdEncoding.EncodedLen(feedChunk)+1)
	for {
		n, err := io.ReadFull(from, buf)
		if n > 0 {
			line = append(base64.StdEncoding.AppendEncode(line[:0], buf[:n]), '\n')
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			_, err = io.WriteString(w, endOfFeed+"\n")
			return err
		}
		if err != nil {
			return err
		}
	}
}

// CopyLines passes whole lines on, so that others can write lines between them, until there are no more.
func CopyLines(to io.Writer, from io.Reader) {
	in := bufio.NewReaderSize(from, 2*feedChunk)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if _, err := to.Write(line); err != nil {
			return
		}
	}
}

// passOn is the other end of Feed: it writes to a command until the feed ends, and reads on
// until there is nothing more. What a command does not want is thrown away.
func passOn(from io.Reader, to io.WriteCloser, heard func()) {
	defer func() { _ = to.Close() }()
	in, buf := bufio.NewReaderSize(from, 2*feedChunk), make([]byte, feedChunk+3)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		heard()
		switch text := line[:len(line)-1]; {
		case len(text) == 0:
		case string(text) == endOfFeed:
			_ = to.Close()
		default:
			n, err := base64.StdEncoding.Decode(buf, text)
			if err != nil {
				return // no caller sends this; the command is killed
			}
			_, _ = to.Write(buf[:n])
			heard()
		}
	}
}
