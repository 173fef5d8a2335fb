// Package plan decides which resources each class of proxies has and keeps them built and up to date.
//
// The Engine holds one Class for each class.Key in use. A class is planned in up to three scope plans, one above the
// other: the mesh's (what all namespaces share), the namespace's and the workload's. A class with a Sidecar has no
// mesh scope, and its lowest plan has lists only for the hosts that it reaches (input.Reader.Reaches). A scope plan
// holds only what differs from the plan below it: see scopePlan.
//
// Each scope plan has a dependency graph. A node of it is a memoised result of a Translator, one list of names or one
// resource; its dependencies are the topics that the translator has read. To build a node is to run the translator.
//
//   - A revision arrives: Engine.Apply updates the scope plans of the mesh, then those of namespaces, then the
//     classes: those that depend on a changed topic (interests) or whose plan below has changed. All views move to
//     the new snapshot at once. An update invalidates the nodes that depend on a changed topic and builds them again.
//     The class publishes a new Snapshot if an item has changed, and notifies its watchers, which are streams.
//   - A proxy subscribes: its stream acquires the class of the proxy and calls Class.Plan, which builds what no scope
//     plan has yet: a wildcard set from the mesh scope upwards, a name in each scope plan that needs its own result.
//   - A result differs per namespace or workload: its node has read something of them (input.Scope), or a topic that
//     is private to the namespace. The scope plan above then builds a node of its own, which replaces the one below.
//
// Locks, in the order in which a goroutine takes them:
//
//  1. Engine.applyMu: one Apply at a time.
//  2. Engine.updateMu: held for reading by everyone who plans, and for writing while the shared scope plans move to
//     the next revision.
//  3. scopePlan.mu, from the workload's down to the mesh's: held for writing by the one who changes that plan, and for
//     reading on all plans below it. To change a lower plan, scopePlan.changeBelow gives up the read locks first.
//     Classes are therefore planned at the same time, except while one of them changes a plan that they share.
//  4. Engine.mu, Class.watchMu, scopePlan.publishMu, interests.mu: held for a few statements.
package plan
