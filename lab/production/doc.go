// Package production has no code of its own: its test runs what docker-compose.yml
// declares, without Compose and without an engine. Compose renders the file; each
// service is then started as declared, in namespaces of its own: command, user, groups,
// environment, secrets, mounts, networks and names, read-only and without capabilities,
// in the declared order, with the declared health checks. Nothing is substituted but the
// images that can't be had here (docs/production.md, "What is tested").
package production
