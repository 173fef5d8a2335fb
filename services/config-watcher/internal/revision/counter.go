package revision

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// counterWidth is the length of a counter's file in bytes: the digits of the largest number and a line break.
const counterWidth = 21

// counterBits bounds the number that is read, so that counting on from it never overflows.
const counterBits = 63

// Counter keeps the number of the newest revision in a file, so that the next run of the process counts on from it.
// Each number is written in place by one system call: a killed process loses none, a machine that loses power may lose
// the last ones.
type Counter struct {
	file *os.File
	last uint64
}

// OpenCounter opens the counter's file at path, or creates it. A file with other content is an error.
func OpenCounter(path string) (*Counter, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	c := &Counter{file: file}
	text := make([]byte, counterWidth+1)
	n, err := file.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, file.Close())
	}
	if n == 0 {
		return c, nil
	}
	if c.last, err = strconv.ParseUint(strings.TrimSuffix(string(text[:n]), "\n"), 10, counterBits); err != nil {
		return nil, errors.Join(fmt.Errorf("%s holds no revision's number; remove it, and revisions are counted from 1", path), file.Close())
	}
	return c, nil
}

// Last is the number of the newest revision; 0 before the first.
func (c *Counter) Last() uint64 { return c.last }

// store writes the number of a revision.
func (c *Counter) store(n uint64) error {
	c.last = n
	_, err := c.file.WriteAt(fmt.Appendf(nil, "%0*d\n", counterWidth-1, n), 0)
	return err
}

// Close closes the file.
func (c *Counter) Close() error { return c.file.Close() }
