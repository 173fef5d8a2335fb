package mesh

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/proto/fairlead/caapi"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

func newRemoteClusters(env command.Env, flags *meshflags.Flags) *cobra.Command {
	out := output.New(output.AsTable, "yaml", "json")
	cmd := &cobra.Command{
		Use:   "remote-clusters",
		Short: "List the further clusters whose services and endpoints the mesh has, and how each does",
		Long: `List the entries of the Secrets with the label istio/multiCluster=true, and how the cluster of each does:

  SYNCED      it is read and followed
  SYNCING     it is being read for the first time; proxies without a configuration wait for it, up to --remote-cluster-timeout
  TIMEOUT     it was not read in that time; the mesh is served without it until it is
  AWAY        it, or some kind of its objects, cannot be read now; its last-known endpoints stay
  REFUSED     its newest kubeconfig is not valid; what an earlier one reads stays and is followed
  IGNORED     the entry has no effect, such as one for an id that an older Secret names

LAST SYNCED is when the cluster was last known to be followed. The own cluster is in the first line.

TOKENS says whether the ca takes tokens of the cluster, by which its workloads get certificates: trusted, refused,
shared_key or ignored, with what to do below, or no. ` + "`fairlead remote-clusters trust`" + ` has them taken. Where the ca does not
answer there is no such column.`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return remoteClusters(cmd.Context(), flags.MeshOfOneRevision(cmd), out.Value, cmd.OutOrStdout())
		},
	}
	flags.Add(cmd.Flags())
	output.Flag(cmd, out)
	flags.AddCluster(cmd)
	cmd.AddCommand(newTrust(env))
	return cmd
}

func remoteClusters(ctx context.Context, mesh *meshclient.Mesh, format string, out io.Writer) error {
	var res *configv1.ListRemoteClustersResponse
	err := mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) (err error) {
		res, err = client.ListRemoteClusters(ctx, &configv1.ListRemoteClustersRequest{})
		return err
	})
	if err != nil {
		return err
	}
	if format != "" {
		return structured.PrintMessage(out, format, res)
	}
	return printRemoteClusters(out, res, tokensOf(ctx, mesh))
}

// tokensOf asks the ca which clusters' tokens count; nil if it does not answer.
func tokensOf(ctx context.Context, mesh *meshclient.Mesh) *caapi.RemoteClusters {
	servers, err := mesh.CAs(ctx)
	if err != nil {
		return nil
	}
	for _, server := range servers {
		var page caapi.RemoteClusters
		if err := server.Ops.Get(ctx, caapi.ClustersPath, nil, &page); err == nil {
			return &page
		}
	}
	return nil
}

// printRemoteClusters prints the clusters that config-watcher reads, and those whose tokens the ca takes.
func printRemoteClusters(out io.Writer, res *configv1.ListRemoteClustersResponse, tokens *caapi.RemoteClusters) error {
	tab := &table.Table{Header: []string{"CLUSTER", "SECRET", "STATE", "LAST SYNCED", "OBJECTS", "SERVER"}}
	add := func(of string, message string, cells ...string) {
		if tokens != nil {
			cells = append(cells, of)
		}
		tab.Add(append(cells, message)...)
	}
	if tokens != nil {
		tab.Header = append(tab.Header, "TOKENS")
	}
	tab.Header = append(tab.Header, "MESSAGE")
	states := map[string]string{}
	var problems []string
	if tokens != nil {
		for _, c := range tokens.Clusters {
			if states[c.Cluster] == "" {
				states[c.Cluster] = c.State
			}
			if c.Problem != "" {
				problems = append(problems, fmt.Sprintf("ConfigMap %s: %s", c.ConfigMap, c.Problem))
			}
		}
		if tokens.Unread != "" {
			problems = append(problems, "the ca cannot read the ConfigMaps of remote clusters: "+tokens.Unread)
		}
	}
	add("trusted", "", res.GetCluster(), "", "own", "", "", "")
	for _, c := range res.GetClusters() {
		synced := "never"
		if c.GetSyncedAt() != nil {
			synced = c.GetSyncedAt().AsTime().UTC().Format(time.RFC3339)
		}
		state := strings.TrimPrefix(c.GetState().String(), "REMOTE_CLUSTER_STATE_")
		of := cmp.Or(states[c.GetId()], "no")
		delete(states, c.GetId())
		add(of, c.GetMessage(), c.GetId(), c.GetSecret(), state, synced, fmt.Sprint(c.GetObjects()), c.GetServer())
	}
	for _, id := range slices.Sorted(maps.Keys(states)) {
		add(states[id], "", id, "", "", "", "", "")
	}
	if err := tab.Write(out); err != nil {
		return err
	}
	if res.GetUnread() != "" {
		problems = append(problems, res.GetUnread())
	}
	for _, p := range problems {
		fmt.Fprintf(out, "\n%s\n", p)
	}
	return nil
}
