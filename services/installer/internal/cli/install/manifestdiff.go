package install

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/terminal"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install/compare"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/structured"
)

func newManifestDiff(env command.Env) *cobra.Command {
	var o compare.Options
	var recursive, verbose bool
	var chosen, ignored, renamed string
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "diff FILE|DIR FILE|DIR",
		Short: "Print what differs between two manifests",
		Long: `Print what differs between two files, or two directories, of Kubernetes objects: - for the first, + for the second. Objects are the same if group, kind,
namespace and name are, in whichever order and file they are. Nothing is printed if nothing differs, and then the exit code is 0, else 1.

Objects are chosen by lists of KIND:NAMESPACE:NAME, with commas between; * and an empty part stand for any text. Objects of the first manifest are renamed
by lists of OLD->NEW, where * in NEW keeps what the object has.`,
		Example: `  fairlead manifest diff before.yaml after.yaml
  fairlead manifest diff before/ after/ --select Deployment:istio-system:*
  fairlead manifest diff before.yaml after.yaml --ignore CustomResourceDefinition:*:* --rename 'Service:*:istiod->Service:*:istiod-canary'`,
		Args: command.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(_ *cobra.Command, a []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(a) == 2 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			for _, list := range []struct {
				flag, text string
				parse      func(string) error
			}{{"select", chosen, o.Select}, {"ignore", ignored, o.Ignore}, {"rename", renamed, o.Rename}} {
				if err := list.parse(list.text); err != nil {
					return process.Usagef("--%s: %w", list.flag, err)
				}
			}
			var sides [2][]*manifest.Object
			for i, name := range a {
				var err error
				if sides[i], err = readManifest(name, env.In); err != nil {
					return err
				}
			}
			differences, err := compare.Manifests(sides[0], sides[1], o)
			if err != nil {
				return process.Refused(err)
			}
			if err := printDifferences(cmd.OutOrStdout(), env, out.Value, differences); err != nil {
				return err
			}
			if len(differences) > 0 {
				return fmt.Errorf("%d of the objects differ", len(differences))
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&chosen, "select", "", "objects to compare (default: all)")
	fs.StringVar(&ignored, "ignore", "", "objects to leave out")
	fs.StringVar(&renamed, "rename", "", "objects of the first manifest that have another name in the second")
	fs.BoolVarP(&recursive, "directory", "r", false, "istioctl's; directories are known without it")
	fs.BoolVarP(&verbose, "verbose", "v", false, "istioctl's; nothing more is printed")
	for _, istios := range []string{"directory", "verbose"} {
		cobra.CheckErr(fs.MarkHidden(istios))
	}
	output.Flag(cmd, out)
	return cmd
}

// maxManifestBytes bounds a manifest to compare, all of its files together.
const maxManifestBytes = 64 << 20

// readManifest reads the objects of a file, of standard input ("-"), or of the YAML and JSON files of a directory and
// those below it.
func readManifest(name string, in io.Reader) ([]*manifest.Object, error) {
	files := []string{name}
	if info, err := os.Stat(name); name != "-" && err != nil {
		return nil, process.Usage(err)
	} else if name != "-" && info.IsDir() {
		files = nil
		err := filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, process.Usage(err)
		}
	}
	var all []*manifest.Object
	left := maxManifestBytes
	for _, file := range files {
		text, err := readUpTo(file, in, left)
		if err != nil {
			return nil, process.Usage(err)
		}
		left -= len(text)
		objects, err := compare.Read(file, string(text))
		if err != nil {
			return nil, process.Refused(err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

func readUpTo(name string, in io.Reader, most int) ([]byte, error) {
	if name != "-" {
		file, err := os.Open(filepath.Clean(name))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(text) > most:
		return nil, fmt.Errorf("%s: the files are longer than %d bytes together; compare them in parts", name, maxManifestBytes)
	}
	return text, nil
}

func printDifferences(out io.Writer, env command.Env, as string, differences []compare.Difference) error {
	if as != "" {
		if differences == nil {
			differences = []compare.Difference{}
		}
		return structured.Print(out, as, differences)
	}
	var b strings.Builder
	for _, d := range differences {
		switch d.Only {
		case compare.First:
			fmt.Fprintf(&b, "- %s\n", d.Object)
		case compare.Second:
			fmt.Fprintf(&b, "+ %s\n", d.Object)
		default:
			fmt.Fprintf(&b, "%s\n", d.Object)
			for _, c := range d.Changes {
				for line := range strings.Lines(strings.Join(tree.DiffLines(c), "\n") + "\n") {
					fmt.Fprintf(&b, "%s   %s", line[:1], line[1:])
				}
			}
		}
	}
	return writeColoured(env, out, b.String())
}

// writeColoured prints lines: in colours on a terminal, where NO_COLOR does not forbid them.
func writeColoured(env command.Env, out io.Writer, text string) error {
	if file := colour(env); file != nil {
		_, err := io.WriteString(file, coloured(text))
		return err
	}
	_, err := io.WriteString(out, text)
	return err
}

// colour returns the terminal that standard output is; nil if it is none, or the user wants no colours.
func colour(env command.Env) *os.File {
	file, ok := env.Out.(*os.File)
	if !ok || env.Getenv("NO_COLOR") != "" || env.Getenv("TERM") == "dumb" || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return file
}

// coloured makes lines red that begin with -, and green that begin with +. Control characters are escaped first.
func coloured(text string) string {
	const red, green, plain = "\x1b[31m", "\x1b[32m", "\x1b[0m"
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = terminal.Text(strings.TrimSuffix(line, "\n"))
		switch {
		case strings.HasPrefix(line, "-"):
			line = red + line + plain
		case strings.HasPrefix(line, "+"):
			line = green + line + plain
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
