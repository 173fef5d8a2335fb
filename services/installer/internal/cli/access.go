package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// withClient returns the RunE of a command that only calls config-watcher: see meshclient.Mesh.Call.
func withClient(t *meshFlags, do func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, a []string) error {
		return t.MeshOfOneRevision(cmd).Call(cmd.Context(), func(ctx context.Context, client *configapi.Client) error {
			return do(ctx, client, a, cmd.OutOrStdout())
		})
	}
}

func newWhoAmI(t *meshFlags) *cobra.Command {
	f := newFormat("json", "yaml")
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Show whom config-watcher takes you for, and what you may do",
		Args:  args(cobra.NoArgs),
		RunE: withClient(t, func(ctx context.Context, client *configapi.Client, _ []string, out io.Writer) error {
			res, err := client.WhoAmI(ctx, &configv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			if f.value != "" {
				return structured.PrintMessage(out, f.value, res)
			}
			fmt.Fprintf(out, "%s, by %s\n", res.GetIdentity(), res.GetMethod())
			tab := &table.Table{Header: []string{"ROLE", "NAMESPACES", "VERBS"}}
			for _, g := range res.GetGrants() {
				tab.Add(g.GetRole(), strings.Join(g.GetNamespaces(), ", "), strings.Join(g.GetVerbs(), ", "))
			}
			return tab.Write(out)
		}),
	}
	outputFlag(cmd, f)
	t.registerCluster(cmd)
	return cmd
}

// errNotAllowed is can-i's error for "no"; it makes the command exit with 1.
var errNotAllowed = errors.New("no")

func newCanI(t *meshFlags) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:     "can-i VERB [KIND]",
		Short:   "Tell whether you may do something, and if not, why",
		Long:    "Verbs are get, list, watch, create, update, patch and delete; -n \"\" is all namespaces. Exit code 1 means no.",
		Example: "  fairlead config can-i update VirtualService -n shop",
		Args:    args(cobra.RangeArgs(1, 2)),
		RunE: withClient(t, func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error {
			req := &configv1.CanIRequest{Verb: a[0], Namespace: namespace}
			if len(a) == 2 {
				kind, err := kinds.Parse(a[1])
				if err != nil {
					return err
				}
				req.Kind = kind
			}
			res, err := client.CanI(ctx, req)
			if err != nil {
				return err
			}
			if !res.GetAllowed() {
				return fmt.Errorf("%w: %s", errNotAllowed, res.GetReason())
			}
			fmt.Fprintln(out, "yes")
			return nil
		}),
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace")
	t.registerCluster(cmd)
	return cmd
}

func newAudit(t *meshFlags) *cobra.Command {
	var last uint32
	var verify bool
	out := newFormat("json")
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who has written what through the configuration API",
		Long:  "For administrators. --verify checks the chains of hashes over all lines that are kept; exit code 1 means that it does not hold.",
		Args:  args(cobra.NoArgs),
		RunE: withClient(t, func(ctx context.Context, client *configapi.Client, _ []string, w io.Writer) error {
			res, err := client.ListAudit(ctx, &configv1.ListAuditRequest{Last: last, Verify: verify})
			if err != nil {
				return err
			}
			if err := printAudit(w, out.value, res.GetLines()); err != nil {
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
