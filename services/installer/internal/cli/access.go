package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/table"
)

// connected is the run function of a command that makes calls to config-watcher within callTimeout.
func connected(t *target, do func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, a []string) error {
		client, err := t.dial()
		if err != nil {
			return err
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		return exit(client.Explain(do(ctx, client, a, cmd.OutOrStdout())))
	}
}

func newWhoAmI(t *target) *cobra.Command {
	f := newFormat("json", "yaml")
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Show whom config-watcher takes you for, and what you may do",
		Args:  args(cobra.NoArgs),
		RunE: connected(t, func(ctx context.Context, client *configapi.Client, _ []string, out io.Writer) error {
			res, err := client.WhoAmI(ctx, &configv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			if f.value != "" {
				return printMessage(out, f.value, res)
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
	return cmd
}

// errNo makes can-i exit with 1.
var errNo = errors.New("no")

func newCanI(t *target) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:     "can-i VERB [KIND]",
		Short:   "Tell whether you may do something, and if not, why",
		Long:    "Verbs are get, list, watch, create, update, patch and delete; -n \"\" is all namespaces. Exit code 1 means no.",
		Example: "  fairlead config can-i update VirtualService -n shop",
		Args:    args(cobra.RangeArgs(1, 2)),
		RunE: connected(t, func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error {
			req := &configv1.CanIRequest{Verb: a[0], Namespace: namespace}
			if len(a) == 2 {
				kind, err := kindName(a[1])
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
				return fmt.Errorf("%w: %s", errNo, res.GetReason())
			}
			fmt.Fprintln(out, "yes")
			return nil
		}),
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace")
	return cmd
}

// banKind is the kind of the objects that ban identities.
const banKind = "IdentityBan"

// ban is an IdentityBan.
type ban struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       banSpec           `json:"spec"`
}

type banSpec struct {
	Identity string     `json:"identity"`
	Reason   string     `json:"reason,omitempty"`
	Until    *time.Time `json:"until,omitempty"`
}

// identityOf reads "<namespace>/<service account>", or a SPIFFE URI, and names the object that bans it.
func identityOf(text, trustDomain string) (identity, object string, err error) {
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return "", "", usage(err)
	}
	if namespace, account, ok := strings.Cut(text, "/"); ok && !strings.Contains(text, "://") {
		id, err := spiffeid.FromSegments(td, "ns", namespace, "sa", account)
		if err != nil {
			return "", "", usage(fmt.Errorf("identity %q: %w; write <namespace>/<service account>", text, err))
		}
		text = id.String()
	}
	id, err := spiffeid.FromString(text)
	if err != nil {
		return "", "", usage(fmt.Errorf("identity %q: %w; write <namespace>/<service account>, or the SPIFFE URI", text, err))
	}
	parts := strings.Split(id.Path(), "/") // "", "ns", <namespace>, "sa", <service account>
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return "", "", usage(fmt.Errorf("identity %q is no workload's: those are spiffe://<trust domain>/ns/<namespace>/sa/<service account>", text))
	}
	const longestName = 253 // of an object
	if object = parts[2] + "." + parts[4]; !id.MemberOf(td) || len(object) > longestName {
		sum := sha256.Sum256([]byte(text))
		object = hex.EncodeToString(sum[:16])
	}
	return id.String(), object, nil
}

func newBan(t *target) *cobra.Command {
	var reason string
	var until time.Duration
	cmd := &cobra.Command{
		Use:   "ban IDENTITY",
		Short: "Shut an identity out of the mesh until it is unbanned",
		Long: "IDENTITY is <namespace>/<service account>, or a SPIFFE URI. Its proxies lose their streams and credentials within a second, nobody is sent to its\n" +
			"workloads, and the configuration API refuses it. The certificates that it holds stay valid until they expire.",
		Example: "  fairlead config ban edge/batch --reason \"key stolen, ticket 4711\" --until 48h",
		Args:    args(cobra.ExactArgs(1)),
		RunE: connected(t, func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error {
			identity, name, err := identityOf(a[0], client.TrustDomain)
			if err != nil {
				return err
			}
			b := ban{"fairlead.dev/v1", banKind, map[string]string{"name": name}, banSpec{Identity: identity, Reason: reason}}
			if until < 0 {
				return usage(errors.New("--until must not be negative"))
			}
			end := "until it is unbanned"
			if until > 0 {
				at := time.Now().Add(until).UTC().Truncate(time.Second)
				b.Spec.Until, end = &at, "until "+at.Format(time.RFC3339)
			}
			text, err := json.Marshal(b)
			if err != nil {
				return err
			}
			res, err := client.Apply(ctx, &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "ban", Content: text}}})
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%s is banned %s (revision %d)\n", identity, end, res.GetRevision())
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what the identity's owner is told")
	cmd.Flags().DurationVar(&until, "until", 0, "how long the ban lasts (default: until it is unbanned)")
	return cmd
}

func newUnban(t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "unban IDENTITY",
		Short: "Lift the bans of an identity",
		Args:  args(cobra.ExactArgs(1)),
		RunE: connected(t, func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error {
			identity, _, err := identityOf(a[0], client.TrustDomain)
			if err != nil {
				return err
			}
			bans, err := listBans(ctx, client)
			if err != nil {
				return err
			}
			lifted := 0
			for _, b := range bans {
				if b.Spec.Identity != identity {
					continue
				}
				if _, err := client.Delete(ctx, &configv1.DeleteRequest{Key: b.key}); err != nil {
					return err
				}
				lifted++
			}
			if lifted == 0 {
				return fmt.Errorf("%s is not banned here; `fairlead config bans` lists who is, and a ban from a file is lifted there", identity)
			}
			fmt.Fprintf(out, "%s is no longer banned\n", identity)
			return nil
		}),
	}
}

// heldBan is an IdentityBan as it is stored.
type heldBan struct {
	key      *configv1.ObjectKey
	Metadata struct {
		Created time.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec banSpec `json:"spec"`
}

func listBans(ctx context.Context, client *configapi.Client) ([]heldBan, error) {
	res, err := client.List(ctx, &configv1.ListRequest{Kind: banKind})
	if err != nil {
		return nil, err
	}
	var out []heldBan
	for _, o := range res.GetObjects() {
		b := heldBan{key: o.GetKey()}
		if err := json.Unmarshal(o.GetManifest(), &b); err != nil {
			return nil, fmt.Errorf("%s %s: %w", banKind, o.GetKey().GetName(), err)
		}
		out = append(out, b)
	}
	return out, nil
}

func newBans(t *target) *cobra.Command {
	f := newFormat("json", "yaml")
	cmd := &cobra.Command{
		Use:   "bans",
		Short: "Show which identities are shut out, since when, until when and why",
		Args:  args(cobra.NoArgs),
		RunE: connected(t, func(ctx context.Context, client *configapi.Client, _ []string, out io.Writer) error {
			bans, err := listBans(ctx, client)
			if err != nil {
				return err
			}
			if f.value != "" {
				list := []shownBan{}
				for _, b := range bans {
					list = append(list, shownBan{b.Spec, b.Metadata.Created})
				}
				return printTree(out, f.value, list)
			}
			tab := &table.Table{Header: []string{"IDENTITY", "SINCE", "UNTIL", "REASON"}}
			for _, b := range bans {
				until := "unbanned"
				if b.Spec.Until != nil {
					until = b.Spec.Until.Format(time.RFC3339)
					if !time.Now().Before(*b.Spec.Until) {
						until += " (over)"
					}
				}
				tab.Add(b.Spec.Identity, b.Metadata.Created.Format(time.RFC3339), until, b.Spec.Reason)
			}
			return tab.Write(out)
		}),
	}
	outputFlag(cmd, f)
	return cmd
}

// shownBan is a ban as JSON.
type shownBan struct {
	banSpec
	Since time.Time `json:"since"`
}

func newAudit(t *target) *cobra.Command {
	var last uint32
	var verify bool
	out := newFormat("json")
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who has written what through the configuration API",
		Long:  "For administrators. --verify checks the chains of hashes over all lines that are kept; exit code 1 means that it does not hold.",
		Args:  args(cobra.NoArgs),
		RunE: connected(t, func(ctx context.Context, client *configapi.Client, _ []string, w io.Writer) error {
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

// auditLine holds the fields that the table shows of a line of the audit log.
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
			what = append(what, fmt.Sprintf("%s %s %s", o.Verb, o.Kind, fullName(o.Namespace, o.Name)))
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
