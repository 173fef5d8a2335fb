package config

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/table"
)

func newAudit(flags *meshflags.Flags) *cobra.Command {
	var last uint32
	var verify bool
	out := output.New("json")
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who has written what through the configuration API",
		Long:  "For administrators. --verify checks the chains of hashes over all lines that are kept; exit code 1 means that it does not hold.",
		Args:  command.Args(cobra.NoArgs),
		RunE: withClient(flags, func(ctx context.Context, client *configapi.Client, _ []string, w io.Writer) error {
			res, err := client.ListAudit(ctx, &configv1.ListAuditRequest{Last: last, Verify: verify})
			if err != nil {
				return err
			}
			if err := printAudit(w, out.Value, res.GetLines()); err != nil {
				return err
			}
			if res.GetBroken() != "" {
				return fmt.Errorf("the audit log was tampered with, or damaged: %s", res.GetBroken())
			}
			if verify {
				fmt.Fprintf(w, "the chain holds: %s\n", res.GetVerified())
			}
			return nil
		}),
	}
	cmd.Flags().Uint32VarP(&last, "last", "n", 20, "how many of the newest lines of what was done, and of what was refused, at most 1000")
	cmd.Flags().BoolVar(&verify, "verify", false, "check that no line was changed or taken out")
	cmd.Flags().VarP(out, "output", "o", "output format; json gives the lines as they are kept")
	return cmd
}

// auditLine holds the fields of an audit log's line that the table shows.
type auditLine struct {
	Time                    time.Time
	Identity, Address, Call string
	Result, Code, Reason    string
	Suppressed              uint64
	More                    int
	Objects                 []struct{ Verb, Kind, Namespace, Name string }
}

func printAudit(out io.Writer, as string, lines []string) error {
	if as == "json" {
		for _, text := range lines {
			fmt.Fprintln(out, text)
		}
		return nil
	}
	tab := &table.Table{Header: []string{"TIME", "IDENTITY", "FROM", "RESULT", "WHAT"}}
	for _, text := range lines {
		var l auditLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return fmt.Errorf("line of the audit log: %w", err)
		}
		var what []string
		for _, o := range l.Objects {
			what = append(what, fmt.Sprintf("%s %s %s", o.Verb, o.Kind, kinds.FullName(o.Namespace, o.Name)))
		}
		if l.More > 0 {
			what = append(what, fmt.Sprintf("and %d more", l.More))
		}
		if len(what) == 0 {
			what = append(what, l.Call)
		}
		result := l.Result
		if l.Code != "" {
			result += " (" + l.Code + ")"
		}
		if l.Suppressed > 0 {
			result += fmt.Sprintf(", after %d more", l.Suppressed)
		}
		tab.Add(l.Time.Format(time.RFC3339), l.Identity, l.Address, result, strings.Join(what, ", "))
	}
	return tab.Write(out)
}
