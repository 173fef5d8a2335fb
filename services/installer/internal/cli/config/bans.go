package config

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

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

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

// identityOf parses "<namespace>/<service account>", or the SPIFFE URI of a workload. object is the name of the
// IdentityBan for it: readable for identities of this trust domain, a hash for others and for names that are too long.
func identityOf(text, trustDomain string) (identity, object string, err error) {
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return "", "", process.Usage(err)
	}
	if namespace, account, ok := strings.Cut(text, "/"); ok && !strings.Contains(text, "://") {
		id, err := spiffeid.FromSegments(td, "ns", namespace, "sa", account)
		if err != nil {
			return "", "", process.Usagef("identity %q: %w; write <namespace>/<service account>", text, err)
		}
		text = id.String()
	}
	id, err := spiffeid.FromString(text)
	if err != nil {
		return "", "", process.Usagef("identity %q: %w; write <namespace>/<service account>, or the SPIFFE URI", text, err)
	}
	namespace, account, ok := auth.WorkloadOf(id)
	if !ok {
		return "", "", process.Usagef("identity %q is no workload's: those are spiffe://<trust domain>/ns/<namespace>/sa/<service account>",
			text)
	}
	const longestName = 253 // of an object
	if object = namespace + "." + account; !id.MemberOf(td) || len(object) > longestName {
		sum := sha256.Sum256([]byte(text))
		object = hex.EncodeToString(sum[:16])
	}
	return id.String(), object, nil
}

func newBan(flags *meshflags.Flags) *cobra.Command {
	var reason string
	var until time.Duration
	cmd := &cobra.Command{
		Use:   "ban IDENTITY",
		Short: "Shut an identity out of the mesh until it is unbanned",
		Long: "IDENTITY is <namespace>/<service account>, or a SPIFFE URI. Its proxies lose their streams and credentials within a second, " +
			"nobody is sent to its\n" +
			"workloads, and the configuration API refuses it. The certificates that it holds stay valid until they expire.",
		Example: "  fairlead config ban edge/batch --reason \"key stolen, ticket 4711\" --until 48h",
		Args:    command.Args(cobra.ExactArgs(1)),
		RunE: withClient(flags, func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error {
			identity, name, err := identityOf(a[0], client.TrustDomain)
			if err != nil {
				return err
			}
			b := ban{"fairlead.dev/v1", banKind, map[string]string{"name": name}, banSpec{Identity: identity, Reason: reason}}
			if until < 0 {
				return process.Usage(errors.New("--until must not be negative"))
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

func newUnban(flags *meshflags.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "unban IDENTITY",
		Short: "Lift the bans of an identity",
		Args:  command.Args(cobra.ExactArgs(1)),
		RunE: withClient(flags, func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error {
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

// storedBan is an IdentityBan that config-watcher has stored.
type storedBan struct {
	key      *configv1.ObjectKey
	Metadata struct {
		Created time.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec banSpec `json:"spec"`
}

func listBans(ctx context.Context, client *configapi.Client) ([]storedBan, error) {
	res, err := client.List(ctx, &configv1.ListRequest{Kind: banKind})
	if err != nil {
		return nil, err
	}
	var out []storedBan
	for _, o := range res.GetObjects() {
		b := storedBan{key: o.GetKey()}
		if err := json.Unmarshal(o.GetManifest(), &b); err != nil {
			return nil, fmt.Errorf("%s %s: %w", banKind, o.GetKey().GetName(), err)
		}
		out = append(out, b)
	}
	return out, nil
}

func newBans(flags *meshflags.Flags) *cobra.Command {
	f := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "bans",
		Short: "Show which identities are shut out, since when, until when and why",
		Args:  command.Args(cobra.NoArgs),
		RunE: withClient(flags, func(ctx context.Context, client *configapi.Client, _ []string, out io.Writer) error {
			bans, err := listBans(ctx, client)
			if err != nil {
				return err
			}
			if f.Value != "" {
				list := []listedBan{}
				for _, b := range bans {
					list = append(list, listedBan{b.Spec, b.Metadata.Created})
				}
				return structured.Print(out, f.Value, list)
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
	output.Flag(cmd, f)
	return cmd
}

// listedBan is a ban in the JSON output of `config bans`.
type listedBan struct {
	banSpec
	Since time.Time `json:"since"`
}
