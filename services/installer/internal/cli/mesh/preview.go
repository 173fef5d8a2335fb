package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

const (
	// maxDeclaration bounds a declaration and each file that it names, as config-watcher does.
	maxDeclaration = 256 << 10
	// previewWithin is longer than config-watcher takes.
	previewWithin = 40 * time.Second
)

func newSourcesPreview(flags *meshflags.Flags) *cobra.Command {
	out := output.New(output.AsTable, "yaml", "json")
	name := ""
	cmd := &cobra.Command{
		Use:   "preview FILE",
		Short: "Show what the mesh would get of a registry, without effect",
		Long: `Read the declaration of a registry in FILE, as --registry-dir and Secrets have it, and have config-watcher read the registry once: hosts, ports,
identities and endpoints of each service, what is wrong with them, and the hosts that the mesh has already. Nothing of it takes effect.

config-watcher connects to the address in FILE, if its --registry-allow-addresses and the rules for addresses let it. Files that FILE names (tokenFile,
caFile, certificateFile, keyFile) are read here, and sent with it; config-watcher neither keeps nor logs them. For administrators; the audit log
(` + "`fairlead config audit`" + `) has who has asked, and for which registry.

A registry that the mesh has under the same name is no conflict: what is shown is what it would become.

Exit code 1 if the mesh has some of the hosts already, or if the registry cannot be read.`,
		Example: `  fairlead sources preview consul-east.yaml
  fairlead sources preview registry.yaml --name consul-east -o json`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return previewRegistry(cmd.Context(), flags.Mesh(cmd), a[0], name, out.Value, cmd.OutOrStdout())
		},
	}
	flags.Add(cmd.Flags())
	cmd.Flags().StringVar(&name, "name", "", "name of the registry, that of its Secret (default: that of FILE without .yaml)")
	output.Flag(cmd, out)
	flags.AddCluster(cmd)
	return cmd
}

func previewRegistry(ctx context.Context, mesh *meshclient.Mesh, file, name, format string, out io.Writer) error {
	text, err := declarationOf(file)
	if err != nil {
		return process.Usage(err)
	}
	if name == "" {
		name = strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".yaml"), ".yml")
	}
	ctx, cancel := context.WithTimeout(ctx, previewWithin)
	defer cancel()
	client, err := mesh.Dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	res, err := client.PreviewRegistry(ctx, &configv1.PreviewRegistryRequest{Name: name, Declaration: text})
	if err != nil {
		if refused := new(configapi.RefusedError); errors.As(client.Explain(err), &refused) {
			return configapi.WithExitCode(fmt.Errorf("%s: %w", file, refused))
		}
		return configapi.WithExitCode(client.Explain(err))
	}
	if format != "" {
		err = structured.PrintMessage(out, format, res)
	} else {
		err = printPreview(out, res)
	}
	conflicts := 0
	for _, p := range res.GetProblems() {
		if p.GetConflict() {
			conflicts++
		}
	}
	if err == nil && conflicts > 0 {
		err = fmt.Errorf("%s: the mesh has %d of the hosts already: the older of two counts", file, conflicts)
	}
	return err
}

// declarationOf reads a declaration, with the content of the files that it names in the place of their names.
func declarationOf(file string) ([]byte, error) {
	text, err := fileio.Read(file, maxDeclaration)
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return text, nil //nolint:nilerr // config-watcher says what is wrong with it
	}
	named := false
	for _, field := range []string{"token", "ca", "certificate", "key"} {
		path, is := doc[field+"File"].(string)
		if !is || path == "" {
			continue
		}
		if _, both := doc[field]; both {
			return nil, fmt.Errorf("%s: %sFile is given beside %s; give one of the two", file, field, field)
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(file), path)
		}
		content, err := fileio.Read(path, maxDeclaration)
		if err != nil {
			return nil, fmt.Errorf("%s: %sFile: %w; make it readable, or name another file", file, field, err)
		}
		named = true
		delete(doc, field+"File")
		doc[field] = strings.TrimSpace(string(content))
	}
	if !named {
		return text, nil // unchanged, so that errors name its lines
	}
	return yaml.Marshal(doc)
}

func printPreview(out io.Writer, res *configv1.PreviewRegistryResponse) error {
	tab := &table.Table{Header: []string{"SERVICE", "NAMESPACE", "HOST", "OTHER HOSTS", "PORTS", "IDENTITY", "READY", "JOINS"}}
	for _, s := range res.GetServices() {
		host, others := "", ""
		if hosts := s.GetHosts(); len(hosts) > 0 {
			host, others = hosts[0], strings.Join(hosts[1:], ",")
		}
		identity := "none: plaintext"
		if s.GetAccount() != "" {
			identity = s.GetNamespace() + "/" + s.GetAccount()
		}
		joins := ""
		if s.GetJoins() != "" {
			joins = fmt.Sprintf("%s: %d %%", s.GetJoins(), s.GetShare())
		}
		tab.Add(s.GetName(), s.GetNamespace(), host, others, strings.Join(s.GetPorts(), ","), identity,
			fmt.Sprintf("%d/%d", s.GetReady(), s.GetInstances()), joins)
	}
	if len(tab.Rows) == 0 {
		fmt.Fprintln(out, "no service becomes part of the mesh")
	} else if err := tab.Write(out); err != nil {
		return err
	}
	more := func(n uint32, what string) {
		if n > 0 {
			fmt.Fprintf(out, "and %d more %s\n", n, what)
		}
	}
	more(res.GetMoreServices(), "services")
	if un := res.GetUnmatched(); len(un) > 0 {
		fmt.Fprintf(out, "\nno rule matches: %s\n", strings.Join(un, ", "))
		more(res.GetMoreUnmatched(), "services that no rule matches")
	}
	for _, conflict := range []bool{true, false} {
		title := map[bool]string{true: "\nconflicts:", false: "\nproblems:"}[conflict]
		for _, p := range res.GetProblems() {
			if p.GetConflict() != conflict {
				continue
			}
			if title != "" {
				fmt.Fprintln(out, title)
				title = ""
			}
			fmt.Fprintf(out, "  %s\n", problemText(p))
		}
	}
	more(res.GetMoreProblems(), "problems")
	return nil
}

// problemText is a problem in one line.
func problemText(p *configv1.PreviewProblem) string {
	text := p.GetReason()
	for _, of := range []string{p.GetField(), p.GetObject()} {
		if of != "" {
			text = of + ": " + text
		}
	}
	if p.GetRemedy() != "" {
		text += "; " + p.GetRemedy()
	}
	return text
}
