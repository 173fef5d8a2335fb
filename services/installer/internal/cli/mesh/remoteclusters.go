package mesh

import (
	"context"
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
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

func newRemoteClusters(flags *meshflags.Flags) *cobra.Command {
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

LAST SYNCED is when the cluster was last known to be followed. The own cluster is in the first line.`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return remoteClusters(cmd.Context(), flags.MeshOfOneRevision(cmd), out.Value, cmd.OutOrStdout())
		},
	}
	flags.Add(cmd.Flags())
	output.Flag(cmd, out)
	flags.AddCluster(cmd)
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
	return printRemoteClusters(out, res)
}

func printRemoteClusters(out io.Writer, res *configv1.ListRemoteClustersResponse) error {
	tab := &table.Table{Header: []string{"CLUSTER", "SECRET", "STATE", "LAST SYNCED", "OBJECTS", "SERVER", "MESSAGE"}}
	tab.Add(res.GetCluster(), "", "own", "", "", "", "")
	for _, c := range res.GetClusters() {
		synced := "never"
		if c.GetSyncedAt() != nil {
			synced = c.GetSyncedAt().AsTime().UTC().Format(time.RFC3339)
		}
		state := strings.TrimPrefix(c.GetState().String(), "REMOTE_CLUSTER_STATE_")
		tab.Add(c.GetId(), c.GetSecret(), state, synced, fmt.Sprint(c.GetObjects()), c.GetServer(), c.GetMessage())
	}
	if err := tab.Write(out); err != nil {
		return err
	}
	if res.GetUnread() != "" {
		fmt.Fprintf(out, "\n%s\n", res.GetUnread())
	}
	return nil
}
