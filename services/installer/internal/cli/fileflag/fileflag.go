// Package fileflag has the flag -f, as in kubectl.
package fileflag

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.dev/pkg/process"
)

// Add adds -f, --filename, as in kubectl: it may be repeated, and takes a list separated by commas.
func Add(fs *pflag.FlagSet, files *[]string, about string) {
	fs.VarP((*List)(files), "filename", "f", about+"; may be repeated, or a list with commas")
}

// NoArgs refuses arguments of a command whose files are named with -f.
func NoArgs(cmd *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	return process.Usagef("files are named with -f: `%s -f %s`", cmd.CommandPath(), strings.Join(a, " -f "))
}

// List is the value of --filename.
type List []string

// String and the next two methods implement pflag.Value.
func (l *List) String() string { return strings.Join(*l, ",") }

// Set adds a file, or the files of a list. A name with commas that is an existing file is taken as one file.
func (l *List) Set(text string) error {
	if _, err := os.Stat(text); err == nil || !strings.Contains(text, ",") {
		*l = append(*l, text)
		return nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if name != "" {
			*l = append(*l, name)
		}
	}
	return nil
}

// Type is shown in the help.
func (l *List) Type() string { return "FILE" }

// HoldsNone is the error about a file without an object.
func HoldsNone(path string) error {
	return process.Refusedf("%s: holds no object; write one, or do not name it", path)
}
