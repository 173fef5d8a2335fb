package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// warningTexts returns the texts of warnings.
func warningTexts(list []*configv1.Warning) []string {
	return lists.Map(list, (*configv1.Warning).GetText)
}

// printNewWarnings prints the warnings about other objects that apply or delete has caused.
func printNewWarnings(out io.Writer, texts []string, dryRun bool) {
	became := "now wrong"
	if dryRun {
		became = "would be wrong"
	}
	for _, text := range texts {
		fmt.Fprintf(out, "warning: %s: %s\n", became, text)
	}
}

// withoutDeleted drops the warnings about objects that deleteObjects has deleted itself: it deletes one after the
// other, and the first deletion may cause a warning about an object that goes next.
func withoutDeleted(list []*configv1.Warning, deleted []*configv1.ObjectKey) []*configv1.Warning {
	return slices.DeleteFunc(list, func(w *configv1.Warning) bool {
		return slices.ContainsFunc(deleted, func(k *configv1.ObjectKey) bool {
			o := w.GetObject()
			return o.GetKind() == k.GetKind() && o.GetNamespace() == k.GetNamespace() && o.GetName() == k.GetName()
		})
	})
}

// addWarnings adds to each answer of `why` config-watcher's warnings about the objects that the answer names, and about
// other objects for the same host.
func (t *target) addWarnings(ctx context.Context, answers []*explanation) {
	if len(t.xdsAddresses) > 0 && t.address == "" {
		return // the flags name xds-servers and no config-watcher
	}
	client, err := t.dial(ctx)
	if err != nil {
		return
	}
	defer client.Close()
	for _, e := range answers {
		req := &configv1.ListWarningsRequest{Hosts: e.hosts()}
		for _, o := range slices.Concat(e.MadeFrom, e.PassedOver) {
			req.Objects = append(req.Objects, &configv1.ObjectKey{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name})
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		res, err := client.ListWarnings(call, req)
		cancel()
		if err != nil {
			e.WarningsUnknown = client.Explain(err).Error()
			continue
		}
		e.Warnings = warningTexts(res.GetWarnings())
	}
}

// hosts returns the host that a resource's name ends with: "outbound|9080|v1|<host>", "<route
// configuration>/<host>:9080".
func (e *explanation) hosts() []string {
	host := e.Name[strings.LastIndexAny(e.Name, "|/")+1:]
	if name, port, found := strings.Cut(host, ":"); found && port != "" && strings.Trim(port, "0123456789") == "" {
		host = name
	}
	if !strings.Contains(host, ".") {
		return nil
	}
	return []string{host}
}

// printWarnings prints the warnings of a `why` answer, or why they are not known.
func (e *explanation) printWarnings(out io.Writer) {
	if e.WarningsUnknown != "" {
		fmt.Fprintf(out, "\nwarnings: not known: %s\n", e.WarningsUnknown)
	}
	if len(e.Warnings) > 0 {
		fmt.Fprintln(out, "\nwarnings:\n  "+strings.Join(e.Warnings, "\n  "))
	}
}
