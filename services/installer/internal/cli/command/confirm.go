package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"fairlead.dev/pkg/process"
)

// maxAnswer bounds what is read as an answer.
const maxAnswer = 1 << 10

// Confirm asks a question of yes or no; anything but yes is no. Without input to read it is an error that names the
// flag which answers.
func Confirm(in io.Reader, out io.Writer, question, flag string) (bool, error) {
	fmt.Fprintf(out, "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(in, maxAnswer)).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(out)
		if errors.Is(err, io.EOF) {
			return false, process.Usagef("nobody answers: standard input is at its end; %s answers yes", flag)
		}
		return false, err
	}
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line))), nil
}

// OrNothingChanged is the error of a question, or of the answer no.
func OrNothingChanged(err error) error {
	if err != nil {
		return err
	}
	return errors.New("nothing was changed: the answer was not yes")
}
