package supervise

import (
	"bytes"
	"os"
	"time"

	"fairlead.dev/pkg/clock"
)

// StampFormat is the form of the time, in UTC, before each line of a Stamped process; a space follows it.
const StampFormat = "2006-01-02T15:04:05.000Z"

// pipeDelay is how long a pipe is read after the process has ended; a child that left its process group may hold it
// open.
const pipeDelay = time.Second

// stampedLog writes a process's output to its log, the time before each line. Lines that the file does not take, as on
// a full disk, are lost; Write never fails, because the process would not get rid of its output then.
type stampedLog struct {
	file  *os.File
	clock clock.Clock
	// inLine is true if the last output has not ended its line.
	inLine bool
}

// Write implements io.Writer.
func (l *stampedLog) Write(output []byte) (int, error) {
	var stamped []byte
	for line := range bytes.Lines(output) {
		if !l.inLine {
			stamped = l.clock.Now().UTC().AppendFormat(stamped, StampFormat)
			stamped = append(stamped, ' ')
		}
		stamped = append(stamped, line...)
		l.inLine = line[len(line)-1] != '\n'
	}
	_, _ = l.file.Write(stamped)
	return len(output), nil
}
