// Package docsrun has only a test: it runs the commands of README.md, CONTRIBUTING.md, docs/ and contributing/ as a
// reader would, in the order of each document, against a fresh `prego-lab dev`. CONTRIBUTING.md ("Documentation") has
// the conventions.
package docsrun
